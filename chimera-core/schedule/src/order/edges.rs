//! Edge finding on one worker: jobs that must come after others so that all end in time.

/// A job of one worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) node: u32,
    /// The earliest start.
    pub(super) head: f64,
    pub(super) takes: f64,
    /// The latest end.
    pub(super) end: f64,
}

/// Some jobs cannot end in time.
#[derive(Debug)]
pub(super) struct Late;

/// Times are compared up to this part of the whole.
const ROUNDING: f64 = 1e-9;

/// The nodes of jobs that cannot start at their heads, with their earliest starts.
///
/// For each latest end, the jobs that must end by then are looked at from each head on. If they
/// cannot all run after the start of another job, they all run before it. This is the algorithm of
/// Nuijten and Aarts in the form of Baptiste, Le Pape and Nuijten (2001).
pub(super) fn delays(mut jobs: Vec<Job>, until: f64) -> Result<Vec<(u32, f64)>, Late> {
    let slack = until * ROUNDING;
    jobs.sort_by(|a, b| a.head.total_cmp(&b.head));
    let mut ends: Vec<f64> = jobs.iter().map(|job| job.end).collect();
    ends.sort_by(f64::total_cmp);
    ends.dedup();
    let mut heads: Vec<f64> = jobs.iter().map(|job| job.head).collect();
    let mut done = vec![0.0; jobs.len()];
    for end in ends {
        let limit = end + slack;
        let is_due = |job: &Job| job.end <= end;
        let mut work = 0.0;
        let mut last = f64::NEG_INFINITY;
        for (job, done) in jobs.iter().zip(&mut done).rev() {
            if is_due(job) {
                work += job.takes;
                last = last.max(job.head + work);
            }
            *done = last;
        }
        if last > limit {
            return Err(Late);
        }
        let mut before = f64::NEG_INFINITY;
        for ((job, head), done) in jobs.iter().zip(&mut heads).zip(&done) {
            if is_due(job) {
                before = before.max(job.head + work);
                work -= job.takes;
                continue;
            }
            if job.head + work + job.takes > limit {
                *head = head.max(*done);
            }
            if before + job.takes > limit {
                *head = head.max(last);
            }
        }
    }
    let later = jobs.iter().zip(heads).filter(|(job, head)| *head > job.head + slack);
    Ok(later.map(|(job, head)| (job.node, head)).collect())
}
