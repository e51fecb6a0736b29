//! Time limits for waits of a meeting that nothing else ends.

use std::process::{abort, exit};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use chimera_core::fault::Class;
use chimera_core::ids::Rank;

use crate::detection::peers::Watched;
use crate::error::Failure;

/// Time between two checks for stopped processes.
const LOOK: Duration = Duration::from_millis(200);

/// The longest that a spawn takes.
const SPAWN: Duration = Duration::from_secs(60);

/// The watching rank, its time limit for others, and its way to warn the user.
#[derive(Clone, Copy)]
pub(crate) struct Watchdog {
    pub(crate) me: Rank,
    pub(crate) patience: Duration,
    pub(crate) warn: fn(&str),
}

impl Watchdog {
    /// Ends this process unless the returned value is dropped in time. Nothing else ends a wait for
    /// a rank that dies while processes connect.
    pub(crate) fn end_if_late(self) -> Result<Sender<()>, Failure> {
        let Watchdog { me, patience, warn } = self;
        unless_dropped("replacing", patience, move || {
            let waited = patience.as_secs_f64();
            warn(&format!(
                "{me} has waited {waited:.0} s for dead ranks to be replaced, perhaps since another has died meanwhile: start \
                 again from the last checkpoint"
            ));
            exit(Class::PeerLost.code().into());
        })
    }

    /// Ends this process, which spawns others, unless the returned value is dropped in time.
    /// Nothing else ends a spawn if a process dies before it has started MPI. To the other ranks
    /// this one is then dead too, and they go on.
    pub(crate) fn die_if_late(self) -> Result<Sender<()>, Failure> {
        let Watchdog { me, patience, warn } = self;
        let limit = SPAWN.min(patience / 2);
        unless_dropped("spawning", limit, move || {
            let waited = limit.as_secs_f64();
            warn(&format!(
                "{me} has waited {waited:.0} s for the processes that it has spawned, and ends, so that it is replaced as well"
            ));
            abort();
        })
    }

    /// Until the returned value is dropped, ends processes of this host that are stopped for longer
    /// than ranks wait for each other. All ranks must come to a meeting, and a stopped one does
    /// not. The transport's ranks are these `members` of the job.
    pub(crate) fn end_stopped(
        self,
        watched: Arc<Watched>,
        members: Vec<Rank>,
    ) -> Result<Sender<()>, Failure> {
        let Watchdog { me, patience, warn } = self;
        let (done, is_done) = channel();
        let watch = move || {
            let mut since: Vec<(Rank, Instant)> = Vec::new();
            while is_done.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                let stopped = watched.stopped();
                since.retain(|(rank, _)| stopped.contains(rank));
                for rank in stopped {
                    match since.iter().find(|(of, _)| *of == rank) {
                        Some((_, since)) if since.elapsed() >= patience => {
                            let who = members.get(rank.index()).copied().unwrap_or(rank);
                            warn(&format!(
                                "{who} is stopped while all wait for it, so {me} ends it"
                            ));
                            watched.kill(rank);
                        }
                        Some(_) => {}
                        None => since.push((rank, Instant::now())),
                    }
                }
            }
        };
        started("meeting", watch).map(|()| done)
    }
}

/// Calls `then` after `limit`, unless the returned value is dropped before.
fn unless_dropped(
    name: &str,
    limit: Duration,
    then: impl FnOnce() + Send + 'static,
) -> Result<Sender<()>, Failure> {
    let (done, is_done) = channel();
    let watch = move || {
        if is_done.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            then();
        }
    };
    started(name, watch).map(|()| done)
}

fn started(name: &str, watch: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let started = Builder::new().name(name.into()).spawn(watch);
    started.map(drop).map_err(|e| format!("cannot start a thread: {e}"))
}
