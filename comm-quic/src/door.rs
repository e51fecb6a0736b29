//! The listening end of a machine. It drops connections without an expected key, and goes on.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quinn::{Connection, ConnectionError, Endpoint, Incoming};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::guest::{Guest, greet};
use crate::key::PublicKey;
use crate::relay::shown;
use crate::tls::{Admitted, Purpose, identity};

/// Time for a peer to prove its key.
const TO_PROVE: Duration = Duration::from_secs(5);
/// Handshakes at a time, of all addresses and of one.
const MAX_HANDSHAKES: usize = 128;
const MAX_BY_ADDRESS: usize = 16;
/// Connections refused that are named; the others are only counted.
const MAX_NAMED: usize = 8;

/// A connection whose peer has proven its key.
pub(crate) struct Proven {
    pub(crate) connection: Connection,
    pub(crate) key: PublicKey,
    pub(crate) purpose: Purpose,
}

/// Handshakes under way, and refusals so far.
struct Guard {
    under_way: Mutex<HashMap<IpAddr, usize>>,
    n_refused: Mutex<usize>,
    warn: fn(&str),
}

/// Takes those who have proven their keys: machines that ask for a place, and ranks.
#[derive(Clone)]
pub(crate) struct Takers {
    pub(crate) joining: mpsc::Sender<Guest>,
    pub(crate) ranks: mpsc::Sender<Proven>,
}

/// Accepts connections until the endpoint closes or nobody takes them any more.
pub(crate) async fn accept(endpoint: Endpoint, admitted: Admitted, takers: Takers, warn: fn(&str)) {
    let guard = Arc::new(Guard { under_way: Mutex::default(), n_refused: Mutex::new(0), warn });
    while let Some(incoming) = endpoint.accept().await {
        let from = incoming.remote_address();
        // A forged address costs nothing: its owner does not answer.
        if !incoming.remote_address_validated() {
            let _ = incoming.retry();
            continue;
        }
        if !guard.enter(from.ip()) {
            guard.refuse(from, "too many handshakes at a time");
            incoming.ignore();
            continue;
        }
        let (guard, admitted, takers) = (Arc::clone(&guard), admitted.clone(), takers.clone());
        tokio::spawn(async move {
            let proof = timeout(TO_PROVE, prove(incoming, &admitted)).await;
            guard.leave(from.ip());
            let proof = proof.unwrap_or_else(|_| Err("it did not finish the handshake".into()));
            let taken = match proof {
                Ok(known) => takers.take(known).await,
                Err(reason) => Err(reason),
            };
            taken.unwrap_or_else(|reason| guard.refuse(from, &reason));
        });
    }
}

impl Takers {
    /// Passes a peer on, if somebody still takes it. The error says why the peer is refused.
    async fn take(&self, known: Proven) -> Result<(), String> {
        match known.purpose {
            Purpose::Join => {
                let guest = greet(known.connection, known.key).await?;
                let _ = self.joining.send(guest).await;
            }
            Purpose::Rank => drop(self.ranks.send(known).await),
        }
        Ok(())
    }
}

/// Finishes a handshake. The error says why the peer is refused.
async fn prove(incoming: Incoming, admitted: &Admitted) -> Result<Proven, String> {
    let connecting = incoming.accept().map_err(|e| why(&e))?;
    let connection = connecting.await.map_err(|e| why(&e))?;
    let refuse = |reason: &str| {
        connection.close(1u8.into(), reason.as_bytes());
        reason.to_string()
    };
    let (key, purpose) = identity(&connection).ok_or_else(|| refuse("it has no key"))?;
    if admitted.purpose(&key) != Some(purpose) {
        return Err(refuse("its key is for another purpose"));
    }
    Ok(Proven { connection, key, purpose })
}

/// Says why a handshake has failed, without the words of the library of TLS.
fn why(error: &ConnectionError) -> String {
    match error {
        ConnectionError::TransportError(_) => "it has no key of this run".into(),
        error => error.to_string(),
    }
}

impl Guard {
    fn enter(&self, address: IpAddr) -> bool {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        let n: usize = under_way.values().sum();
        let of_this = under_way.get(&address).copied().unwrap_or_default();
        let may_enter = n < MAX_HANDSHAKES && of_this < MAX_BY_ADDRESS;
        if may_enter {
            under_way.insert(address, of_this + 1);
        }
        may_enter
    }

    fn leave(&self, address: IpAddr) {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        match under_way.get_mut(&address) {
            Some(n) if *n > 1 => *n -= 1,
            _ => drop(under_way.remove(&address)),
        }
    }

    fn refuse(&self, from: SocketAddr, reason: &str) {
        let mut n_refused = self.n_refused.lock().unwrap_or_else(PoisonError::into_inner);
        *n_refused += 1;
        let from = shown(from);
        match *n_refused {
            n if n < MAX_NAMED => (self.warn)(&format!("refused {from}: {reason}")),
            MAX_NAMED => (self.warn)(&format!("refused {from}: {reason}; no more are named")),
            _ => {}
        }
    }
}
