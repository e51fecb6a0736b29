//! The list of members in the folder of a run, which `chimera top` and the report show.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::{Context, Result};
use chimera_comm_quic::{Guest, Wish};
use chimera_core::ids::Rank;

use super::members::About;
use crate::cli::parts::terminal::console::warn;
use crate::cli::parts::training::ranks::Member;
use crate::formats::files;
use crate::run::MEMBERS;

/// The members of a run by rank.
pub(super) struct MemberList {
    folder: OnceLock<PathBuf>,
    members: Mutex<Vec<Member>>,
}

impl MemberList {
    /// Lists the host and its guests.
    pub(super) fn of(host: &About, guests: &[Guest]) -> MemberList {
        let mut members = vec![host.member(Rank(0))];
        members.extend((1..).map(Rank).zip(guests).map(|(rank, guest)| Member {
            address: Some(guest.address()),
            round_trip_s: Some(guest.latency().as_secs_f64()),
            ..About::read(guest).member(rank)
        }));
        MemberList { folder: OnceLock::new(), members: Mutex::new(members) }
    }

    /// Writes the list into the folder of the run, and again whenever it changes.
    pub(super) fn begun(&self, folder: &Path) {
        let _ = self.folder.set(folder.to_path_buf());
        self.write();
    }

    /// A machine has taken the place of a rank.
    pub(super) fn came(&self, rank: Rank, wish: &Wish) {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(member) = members.get_mut(rank.index()) {
            *member = About::of(wish).member(rank);
        }
        drop(members);
        self.write();
    }

    fn write(&self) {
        let Some(folder) = self.folder.get() else { return };
        let path = folder.join(MEMBERS);
        let written = || -> Result<()> {
            let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(files::write(&path, &serde_json::to_vec(&*members)?)?)
        };
        let written = written().with_context(|| format!("cannot write {}", path.display()));
        written.unwrap_or_else(|error| warn(&format!("{error:#}")));
    }
}

impl About {
    fn member(&self, rank: Rank) -> Member {
        let About { name, system, threads, device, flops } = self.clone();
        let rank = rank.0;
        Member { rank, name, system, threads, device, flops, address: None, round_trip_s: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newcomer_is_listed_in_its_place() {
        let about = |name: &str| About { name: name.into(), threads: 3, ..About::default() };
        let list = MemberList::of(&about("host"), &[]);
        list.members.lock().unwrap().push(about("first").member(Rank(1)));
        let folder = tempfile::tempdir().unwrap();
        let about = serde_json::to_string(&about("second")).unwrap();
        let wish = Wish { place: None, about };
        list.came(Rank(1), &wish);
        list.begun(folder.path());
        list.came(Rank(7), &wish); // there is no such place
        let names = Member::all_in(folder.path()).into_iter().map(|it| (it.rank, it.name));
        let expected = [(0, "host"), (1, "second")].map(|(rank, name)| (rank, name.to_string()));
        assert_eq!(names.collect::<Vec<_>>(), expected);
    }
}
