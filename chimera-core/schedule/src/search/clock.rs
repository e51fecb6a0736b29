//! The clock that a search measures its time limit by.

use std::fmt;
use std::time::Duration;

/// A clock: a function that returns the time since a fixed moment. A caller provides one if the
/// system has none that this crate could read, as in a browser.
#[derive(Clone, Copy)]
pub struct Clock(fn() -> Duration);

impl Clock {
    /// A clock that reads `now`, the time since a fixed moment.
    pub fn new(now: fn() -> Duration) -> Clock {
        Clock(now)
    }

    /// The current time, since the clock's fixed moment.
    pub(super) fn now(self) -> Duration {
        (self.0)()
    }

    /// The time since `earlier`.
    pub(super) fn since(self, earlier: Duration) -> Duration {
        self.now().saturating_sub(earlier)
    }
}

impl Default for Clock {
    /// The system's clock. WebAssembly has no clock of its own: there it stands still, and a search
    /// ends only by its number of orders.
    fn default() -> Clock {
        Clock(system)
    }
}

impl PartialEq for Clock {
    fn eq(&self, other: &Clock) -> bool {
        std::ptr::fn_addr_eq(self.0, other.0)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

#[cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]
fn system() -> Duration {
    use std::sync::LazyLock;
    use std::time::Instant;

    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed()
}

#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
fn system() -> Duration {
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_does_not_run_backwards() {
        let clock = Clock::default();
        let earlier = clock.now();
        assert!(clock.now() >= earlier);
        assert_eq!(Clock::new(|| Duration::ZERO).since(Duration::from_secs(1)), Duration::ZERO);
    }
}
