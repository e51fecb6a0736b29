//! Process handles of Linux. A handle keeps naming its process even after the number is used again.

#[cfg(target_os = "linux")]
mod linux {
    use std::os::fd::OwnedFd;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

    pub(crate) struct Handle(OwnedFd);

    /// Ends the process of this number at once.
    pub(crate) fn kill(pid: u32) {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL); // it may have ended by itself
        }
    }

    impl Handle {
        /// Opens a handle for the process `pid`, if it exists and Linux is 5.3 or later.
        pub(crate) fn open(pid: u32) -> Option<Handle> {
            let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
            pidfd_open(pid, PidfdFlags::empty()).ok().map(Handle)
        }

        /// Ends the process at once.
        pub(crate) fn kill(&self) {
            let _ = pidfd_send_signal(&self.0, Signal::KILL); // it may have ended by itself
        }

        /// Returns for each handle whether its process has ended, with one system call.
        pub(crate) fn have_ended<'h>(handles: impl Iterator<Item = &'h Handle>) -> Vec<bool> {
            let mut all: Vec<_> =
                handles.map(|handle| PollFd::new(&handle.0, PollFlags::IN)).collect();
            // A call that a signal interrupts has seen nothing; the next one will.
            let n_ended = poll(&mut all, Some(&Timespec::default())).unwrap_or(0);
            all.iter().map(|fd| n_ended > 0 && fd.revents().contains(PollFlags::IN)).collect()
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    /// Other systems have no handles.
    pub(crate) enum Handle {}

    /// Processes cannot be ended by number on other systems.
    pub(crate) fn kill(_pid: u32) {}

    impl Handle {
        pub(crate) fn open(_pid: u32) -> Option<Handle> {
            None
        }

        pub(crate) fn kill(&self) {
            match *self {}
        }

        pub(crate) fn have_ended<'h>(handles: impl Iterator<Item = &'h Handle>) -> Vec<bool> {
            handles.map(|handle| match *handle {}).collect()
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) use elsewhere::{Handle, kill};
#[cfg(target_os = "linux")]
pub(crate) use linux::{Handle, kill};
