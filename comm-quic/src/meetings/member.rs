//! A member's side of meetings.

use std::time::Duration;

use chimera_core::ids::Rank;
use quinn::{Connection, RecvStream};
use tokio::time::timeout;

use super::{Invitation, Met, deadline, is_end};
use crate::Seat;
use crate::files::Request;
use crate::mesh::{self, Mesh, Socket};
use crate::message::{hear, tell};
use crate::probe::watch;
use crate::tls::Purpose;

/// Bytes of the host's answers.
const MAX_INVITATION: usize = 1 << 22;
/// Time for the end of connections to leave this process.
const TO_LEAVE: Duration = Duration::from_millis(500);

/// The meetings, as a member sees them.
pub(super) struct MemberMeetings {
    pub(super) rank: Rank,
    socket: Socket,
    host: Connection,
    is_watched: bool,
    has_met: bool,
}

/// The end of one try.
enum Tried {
    Met(Met),
    Over,
    Again,
}

impl MemberMeetings {
    pub(super) fn of(seat: Seat) -> MemberMeetings {
        let (rank, socket, host) = (seat.rank, seat.socket, seat.files.host);
        MemberMeetings { rank, socket, host, is_watched: false, has_met: false }
    }

    /// Comes to a meeting; returns `None` if any rank has nothing left to train. The error says how the
    /// host was lost.
    pub(super) async fn meet(&mut self, goes_on: bool) -> Result<Option<Met>, String> {
        if !std::mem::replace(&mut self.is_watched, true) {
            tokio::spawn(watch(self.host.clone()));
        }
        loop {
            match self.attempt(goes_on).await {
                Ok(Tried::Met(met)) => return Ok(Some(met)),
                Ok(Tried::Over) => return Ok(None),
                Ok(Tried::Again) => {}
                Err(reason) => match self.host.close_reason() {
                    Some(end) if is_end(&end) => return Ok(None), // all have left
                    Some(error) => return Err(error.to_string()),
                    None => return Err(reason),
                },
            }
        }
    }

    async fn attempt(&mut self, goes_on: bool) -> Result<Tried, String> {
        let (mut send, mut recv) = self.host.open_bi().await.map_err(|e| e.to_string())?;
        tell(&mut send, &Request::Meet(goes_on)).await?;
        let silent = || "it does not answer".to_string();
        let invitation = hear(&mut recv, MAX_INVITATION).await.ok_or_else(silent)?;
        let Invitation::Connect { meeting, present, mut members } = invitation else {
            return Ok(Tried::Over);
        };
        let nth = present.iter().position(|rank| *rank == self.rank);
        let me = nth.filter(|_| present.len() == members.len());
        let me = Rank(me.ok_or("it sends an invitation for others")? as u32);
        let there = self.host.remote_address();
        members[0].addresses = vec![there];
        let admitted = members.iter().map(|member| (member.key, Purpose::Rank));
        self.socket.admit(admitted);
        let mesh = Mesh { me, members: &members, host: Some(there.ip()), meeting };
        let verdict = verdict(&mut recv);
        tokio::pin!(verdict);
        let connected = tokio::select! {
            connected = mesh::connect(&mut self.socket, mesh, deadline()) => connected,
            goes_on = &mut verdict => return goes_on.map(|_| Tried::Again),
        };
        let missing = connected.as_ref().err().map_or(Vec::new(), |of| of.missing.clone());
        tell(&mut send, &missing).await?;
        match (verdict.await?, connected) {
            (true, Ok(connections)) => {
                let is_first = !std::mem::replace(&mut self.has_met, true);
                Ok(Tried::Met(Met { connections, present, is_first }))
            }
            _ => Ok(Tried::Again),
        }
    }

    /// Leaves the run.
    pub(super) async fn close(self) {
        self.host.close(0u8.into(), b"left");
        self.socket.endpoint.close(0u8.into(), b"left");
        let _ = timeout(TO_LEAVE, self.socket.endpoint.wait_idle()).await;
    }
}

/// A member that is dropped before it has left is gone for the others.
impl Drop for MemberMeetings {
    fn drop(&mut self) {
        self.host.close(5u8.into(), b"it has left");
    }
}

/// Waits for the host to say whether all have connected.
async fn verdict(recv: &mut RecvStream) -> Result<bool, String> {
    hear(recv, MAX_INVITATION).await.ok_or_else(|| "it says nothing more".into())
}
