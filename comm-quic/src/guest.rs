//! A machine that asks a host for a place.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use quinn::{Connection, SendStream};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::PublicKey;
use crate::dial::{Member, confirm};
use crate::files::{self, Comer, Offer, Shelf};
use crate::relay::{is_relayed, shown};

/// Bytes of a request for a place.
const MAX_HELLO: usize = 64 << 10;
/// Time for a member to say what it wants.
const TO_SAY: Duration = Duration::from_secs(5);

/// The wish of a machine that joins.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct Wish {
    /// Rank of the machine, and the number of ranks; `None` if the host is to decide.
    pub place: Option<(u32, u32)>,
    /// A description of what the machine brings, for the program.
    pub about: String,
}

/// A request for a place.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) version: String,
    pub(crate) key: PublicKey,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) wish: Wish,
}

/// The answer, once all ranks are there.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Place {
        rank: u32,
        n_ranks: u32,
        members: Vec<Member>,
        plan: String,
        offers: Vec<Offer>,
    },
    Refused(String),
    /// The run has ended without this machine.
    NotNeeded,
}

/// The place that a machine gets.
pub(crate) struct Place {
    pub(crate) rank: u32,
    pub(crate) n_ranks: u32,
    pub(crate) plan: String,
}

/// A machine that waits for the others.
pub struct Guest {
    /// The key that it has proven: that of the ticket.
    pub(crate) ticket: PublicKey,
    hello: Hello,
    connection: Connection,
    answer: SendStream,
}

impl Guest {
    /// The machine's address, as the host sees it, or its id at the relay.
    pub fn address(&self) -> String {
        shown(self.connection.remote_address())
    }

    /// Round trip time to it.
    pub fn latency(&self) -> Duration {
        self.connection.min_rtt()
    }

    /// The wish of the machine.
    pub fn wish(&self) -> &Wish {
        &self.hello.wish
    }

    /// Returns true if the machine has left.
    pub fn has_left(&self) -> bool {
        self.connection.close_reason().is_some()
    }

    /// The connection of the machine.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Gives it a place, and answers its requests until it leaves. `come` takes its wishes to meet.
    pub(crate) async fn seat(
        mut self,
        place: Place,
        members: Vec<Member>,
        index: Arc<AtomicU32>,
        shelf: Arc<Shelf>,
        come: impl Fn(Comer) + Clone + Send + 'static,
    ) {
        let Place { rank, n_ranks, plan } = place;
        let offers = shelf.offers.clone();
        let answer = Answer::Place { rank, n_ranks, members, plan, offers };
        if say(&mut self.answer, &answer).await.is_some() {
            files::serve(self.connection, index, shelf, come).await;
        }
    }

    /// Tells it that the run has ended without it.
    pub(crate) async fn dismiss(mut self) {
        let _ = say(&mut self.answer, &Answer::NotNeeded).await;
        let _ = timeout(TO_SAY, self.answer.stopped()).await;
    }

    /// Every address by which it may be reached.
    pub(crate) fn member(&self) -> Member {
        let seen = self.connection.remote_address();
        let others = self.hello.addresses.iter().copied().filter(|address| *address != seen);
        let addresses = [seen].into_iter().chain(others.take(8));
        let addresses = addresses.filter(|address| !is_relayed(address)).collect();
        Member { key: self.hello.key, addresses }
    }

    pub(crate) async fn refuse(mut self, reason: &str) {
        let _ = say(&mut self.answer, &Answer::Refused(reason.into())).await;
        let _ = timeout(TO_SAY, self.answer.stopped()).await;
        self.connection.close(1u8.into(), reason.as_bytes());
    }
}

/// Reads what a machine asks for. The error says why it is refused.
pub(crate) async fn greet(connection: Connection, ticket: PublicKey) -> Result<Guest, String> {
    let said = timeout(TO_SAY, hear(connection, ticket)).await;
    said.unwrap_or_else(|_| Err("it says nothing".into()))
}

async fn hear(connection: Connection, ticket: PublicKey) -> Result<Guest, String> {
    confirm(&connection, 0).await.ok_or("it has gone")?;
    let (answer, mut recv) = connection.accept_bi().await.map_err(|e| e.to_string())?;
    let bytes = recv.read_to_end(MAX_HELLO).await.map_err(|e| e.to_string())?;
    let hello: Hello = serde_json::from_slice(&bytes).map_err(|e| e.to_string())?;
    let guest = Guest { ticket, hello, connection, answer };
    let (version, own) = (&guest.hello.version, env!("CARGO_PKG_VERSION"));
    if version != own {
        let reason = format!("it is of version {version}, and the host of {own}");
        guest.refuse(&reason).await;
        return Err(reason);
    }
    Ok(guest)
}

async fn say(stream: &mut SendStream, answer: &Answer) -> Option<()> {
    stream.write_all(&serde_json::to_vec(answer).ok()?).await.ok()?;
    stream.finish().ok()
}

#[cfg(test)]
mod tests;
