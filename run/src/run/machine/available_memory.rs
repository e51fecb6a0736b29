//! Memory that this process may still take.
//!
//! A container, or a job of SLURM, may be allowed less than the machine has free. So the limits of
//! this process's control group and of those above it count too (version 2: `memory.max`; version
//! 1: `memory.limit_in_bytes`).

use std::path::Path;

use chimera_formats::files::text_regular;

/// The system's files are far shorter.
const MAX_BYTES: u64 = 1 << 20;

/// Memory available without swapping.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Free {
    pub(crate) bytes: f64,
    /// Whether a control group is the limit, rather than the machine.
    pub(crate) by_limit: bool,
}

/// Returns the available memory according to the system files below `root`. Only Linux has them.
pub(crate) fn free_memory(root: &Path) -> Option<Free> {
    let of_machine = Free { bytes: available(root)?, by_limit: false };
    let groups = read(&root.join("proc/self/cgroup")).unwrap_or_default();
    let limited = groups.lines().filter_map(|line| within_limits(root, line));
    let limited = limited.map(|bytes| Free { bytes, by_limit: true });
    limited.chain([of_machine]).min_by(|a, b| a.bytes.total_cmp(&b.bytes))
}

/// Memory of the machine that this process holds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Resident {
    /// Bytes now.
    pub(crate) bytes: f64,
    /// Bytes of files among them, such as the parts of the program's code that were used.
    pub(crate) of_files: f64,
    /// The most bytes so far.
    pub(crate) peak: f64,
}

/// Returns the memory of this process, if the system files below `root` show it.
pub(crate) fn resident(root: &Path) -> Option<Resident> {
    let text = read(&root.join("proc/self/status"))?;
    let bytes = |name: &str| Some(field(&text, name)? * 1024.0);
    let of_files = bytes("RssFile:").unwrap_or(0.0); // since Linux 4.5
    Some(Resident { bytes: bytes("VmRSS:")?, of_files, peak: bytes("VmHWM:")? })
}

fn available(root: &Path) -> Option<f64> {
    let text = read(&root.join("proc/meminfo"))?;
    Some(field(&text, "MemAvailable:")? * 1024.0)
}

/// Returns the bytes left by the group of a line `ID:CONTROLLERS:PATH` and by those above it.
fn within_limits(root: &Path, line: &str) -> Option<f64> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let is_of_memory = |name: &str| name == "memory";
    let (mount, [limit, usage, cache]) = match controllers {
        "" => ("sys/fs/cgroup", ["memory.max", "memory.current", "inactive_file"]),
        _ if controllers.split(',').any(is_of_memory) => (
            "sys/fs/cgroup/memory",
            ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"],
        ),
        _ => return None,
    };
    let left = |folder: &Path| {
        let read = |name: &str| read(&folder.join(name));
        let number = |name: &str| read(name)?.trim().parse::<f64>().ok(); // without a limit it is not a number
        // Pages of files are released when memory is needed.
        let reclaimable = read("memory.stat").and_then(|text| field(&text, cache)).unwrap_or(0.0);
        Some((number(limit)? - number(usage)? + reclaimable).max(0.0))
    };
    // Within a namespace of its own a group sees itself as the root.
    let path = Path::new(path.trim_start_matches('/'));
    let all = path.ancestors().filter_map(|group| left(&root.join(mount).join(group)));
    all.min_by(f64::total_cmp)
}

fn read(path: &Path) -> Option<String> {
    text_regular(path, MAX_BYTES).ok().flatten()
}

/// Returns the number after a word at the start of a line.
fn field(text: &str, name: &str) -> Option<f64> {
    let of = |line: &str| {
        let mut words = line.split_whitespace();
        (words.next()? == name).then(|| words.next()?.parse().ok()).flatten()
    };
    text.lines().find_map(of)
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};

    use super::*;

    /// Free memory of a system with these files, in MiB.
    fn free(files: &[(&str, &str)]) -> Option<(f64, bool)> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            create_dir_all(path.parent().unwrap()).unwrap();
            write(path, text).unwrap();
        }
        let Free { bytes, by_limit } = free_memory(root.path())?;
        Some((bytes / f64::from(1 << 20), by_limit))
    }

    const MACHINE: (&str, &str) =
        ("proc/meminfo", "MemTotal: 99999999 kB\nMemAvailable: 102400 kB\n");

    #[test]
    fn the_machine_alone() {
        assert_eq!(free(&[]), None);
        assert_eq!(free(&[MACHINE]), Some((100.0, false)));
    }

    #[test]
    fn the_tightest_group_counts() {
        let own = ("proc/self/cgroup", "0::/job/step\n");
        let limit = |mib: u32| format!("{}\n", mib << 20);
        let (none, used) = ("max\n".to_string(), limit(10));
        let job = [limit(60), limit(90)];
        for (of_job, of_step, expected) in [
            (&none, &none, (100.0, false)),
            (&job[0], &none, (52.0, true)), // 2 MiB are of files
            (&job[1], &job[0], (50.0, true)),
            (&limit(5), &none, (0.0, true)),
        ] {
            let found = free(&[
                MACHINE,
                own,
                ("sys/fs/cgroup/job/memory.max", of_job),
                ("sys/fs/cgroup/job/memory.current", &used),
                ("sys/fs/cgroup/job/memory.stat", "anon 5\ninactive_file 2097152\n"),
                ("sys/fs/cgroup/job/step/memory.max", of_step),
                ("sys/fs/cgroup/job/step/memory.current", &used),
            ]);
            assert_eq!(found, Some(expected), "{of_job} {of_step}");
        }
    }

    #[test]
    fn version_1_and_containers() {
        let own = ("proc/self/cgroup", "5:cpu,memory:/docker/x\n2:cpuset:/\n0::/\n");
        let limited = [
            MACHINE,
            own,
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "31457280"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "10485760"),
        ];
        assert_eq!(free(&limited), Some((20.0, true)));
        let in_a_namespace = [
            MACHINE,
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "31457280"),
            ("sys/fs/cgroup/memory.current", "10485760"),
        ];
        assert_eq!(free(&in_a_namespace), Some((20.0, true)));
    }
}
