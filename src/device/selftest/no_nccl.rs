//! Replaces `nccl` in a build without it.

use super::suite::Suite;
use crate::device::Devices;

/// Notes that nothing is tested.
pub(super) fn ranks(suite: &mut Suite, _: &Devices) {
    suite.note("NCCL is not tested: it is not in this build");
}
