//! Files between members and the host: members fetch those that the host offers, and send it their
//! own.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use chimera_core::ids::Rank;
use quinn::{Connection, RecvStream, SendStream};
use serde::{Deserialize, Serialize};
use tokio::task::block_in_place;
use tokio::time::timeout;

use crate::QuicError;
use crate::message::{hear, tell};
use crate::net::runtime;

/// Bytes that are read or written at once.
const PIECE: usize = 1 << 20;
/// Bytes of a request.
const MAX_REQUEST: usize = 1 << 12;
/// Time for a request to arrive.
const TO_ASK: Duration = Duration::from_secs(10);

/// A file that the host offers, without its path on the host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Offer {
    /// The name of the file, without folders.
    pub name: String,
    /// Length of the file in bytes.
    pub n_bytes: u64,
    /// BLAKE3 of the file's content, in hexadecimal.
    pub blake3: String,
}

/// Returns the path for a file that a rank sends under a name. The error says why the host refuses
/// it.
pub type PlaceOf = Arc<dyn Fn(Rank, &str) -> Result<PathBuf, String> + Send + Sync>;

/// The files of a host.
#[derive(Clone)]
pub struct HostFiles {
    pub(crate) host: Connection,
    pub(crate) offers: Arc<Vec<Offer>>,
}

/// A request of a member to the host.
#[derive(Serialize, Deserialize)]
pub(crate) enum Request {
    /// The content of the offer with this number.
    Fetch(usize),
    /// A file follows.
    Put(Offer),
    /// The member comes to a meeting, or in a run without meetings has connected with all others;
    /// false if it has nothing left to train.
    Meet(bool),
}

impl Offer {
    /// Reads a file in order to offer it.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn of(path: &Path) -> Result<Offer, QuicError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Offer::named(name, path)
    }

    fn named(name: String, path: &Path) -> Result<Offer, QuicError> {
        let error =
            |e: std::io::Error| QuicError::File { name: name.clone(), reason: e.to_string() };
        let mut hasher = blake3::Hasher::new();
        let mut file = File::open(path).map_err(error)?;
        let n_bytes = std::io::copy(&mut file, &mut hasher).map_err(error)?;
        Ok(Offer { name, n_bytes, blake3: hasher.finalize().to_hex().to_string() })
    }
}

impl HostFiles {
    /// The files that the host offers.
    pub fn offers(&self) -> &[Offer] {
        &self.offers
    }

    /// Writes the file with this number to `to`, and checks its length and content.
    ///
    /// # Errors
    /// If it does not arrive whole.
    pub fn fetch(&self, number: usize, to: &mut impl Write) -> Result<(), QuicError> {
        let none = || QuicError::File { name: number.to_string(), reason: "no such file".into() };
        let offer = self.offers.get(number).ok_or_else(none)?;
        let fetched = runtime()?.block_on(async {
            let (mut send, mut recv) = self.host.open_bi().await.map_err(|e| e.to_string())?;
            tell(&mut send, &Request::Fetch(number)).await?;
            receive(&mut recv, offer, to).await
        });
        fetched.map_err(|reason| QuicError::File { name: offer.name.clone(), reason })
    }

    /// Sends the host a file under a name, and waits until it is on the host's disk.
    ///
    /// # Errors
    /// If it cannot be read here or written there.
    pub fn put(&self, name: &str, path: &Path) -> Result<(), QuicError> {
        let offer = Offer::named(name.into(), path)?;
        let put = runtime()?.block_on(async {
            let (mut send, mut recv) = self.host.open_bi().await.map_err(|e| e.to_string())?;
            tell(&mut send, &Request::Put(offer)).await?;
            self::send(&mut send, path).await?;
            let answer = recv.read_to_end(MAX_REQUEST).await.map_err(|e| e.to_string())?;
            if answer == b"ok" { Ok(()) } else { Err(String::from_utf8_lossy(&answer).into()) }
        });
        put.map_err(|reason| QuicError::File { name: name.into(), reason })
    }
}

/// The files that a host offers, and the places of those that members send.
pub(crate) struct Shelf {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) offers: Vec<Offer>,
    pub(crate) place_of: PlaceOf,
}

impl Shelf {
    /// Reads the files to offer them.
    pub(crate) fn of(files: Vec<PathBuf>, place_of: PlaceOf) -> Result<Shelf, QuicError> {
        let offers = files.iter().map(|path| Offer::of(path)).collect::<Result<_, _>>()?;
        Ok(Shelf { files, offers, place_of })
    }
}

/// A member that comes to a meeting, and the streams of the answer.
pub(crate) struct Comer {
    /// Whether it has something left to train.
    pub(crate) goes_on: bool,
    pub(crate) send: SendStream,
    pub(crate) recv: RecvStream,
}

/// Answers the requests of a member until its connection ends. `rank` is its rank in the transport, and
/// `come` takes its wishes to meet.
pub(crate) async fn serve(
    connection: Connection,
    rank: Arc<AtomicU32>,
    shelf: Arc<Shelf>,
    come: impl Fn(Comer) + Clone + Send + 'static,
) {
    while let Ok((mut send, mut recv)) = connection.accept_bi().await {
        let (rank, shelf, come) = (Arc::clone(&rank), Arc::clone(&shelf), come.clone());
        tokio::spawn(async move {
            match timeout(TO_ASK, hear(&mut recv, MAX_REQUEST)).await {
                Ok(Some(Request::Fetch(number))) => {
                    if let Some(path) = shelf.files.get(number) {
                        // A member finds by length and BLAKE3 whether it is whole.
                        let _ = self::send(&mut send, path).await;
                    }
                }
                Ok(Some(Request::Put(offer))) => {
                    let rank = Rank(rank.load(Ordering::Relaxed));
                    let kept = keep(&mut recv, rank, &offer, &shelf.place_of).await;
                    let answer = kept.err().unwrap_or_else(|| "ok".into());
                    let _ = send.write_all(answer.as_bytes()).await;
                    let _ = send.finish();
                }
                Ok(Some(Request::Meet(goes_on))) => come(Comer { goes_on, send, recv }),
                _ => {}
            }
        });
    }
}

/// Writes a file of a member under another name, until it is whole.
async fn keep(
    recv: &mut RecvStream,
    rank: Rank,
    offer: &Offer,
    place_of: &PlaceOf,
) -> Result<(), String> {
    let path = place_of(rank, &offer.name)?;
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let text = |e: std::io::Error| format!("{}: {e}", path.display());
    let mut file = File::create(&part).map_err(text)?;
    let received = receive(recv, offer, &mut file).await;
    let synced = received.and_then(|()| block_in_place(|| file.sync_all()).map_err(text));
    let kept = synced.and_then(|()| std::fs::rename(&part, &path).map_err(text));
    kept.inspect_err(|_| drop(std::fs::remove_file(&part)))
}

async fn send(send: &mut SendStream, path: &Path) -> Result<(), String> {
    let mut file = File::open(path).map_err(|e| e.to_string())?;
    let mut piece = vec![0; PIECE];
    loop {
        match block_in_place(|| file.read(&mut piece)).map_err(|e| e.to_string())? {
            0 => return send.finish().map_err(|e| e.to_string()),
            n => send.write_all(&piece[..n]).await.map_err(|e| e.to_string())?,
        }
    }
}

async fn receive(recv: &mut RecvStream, offer: &Offer, to: &mut impl Write) -> Result<(), String> {
    let (mut hasher, mut n_bytes) = (blake3::Hasher::new(), 0);
    while let Some(chunk) = recv.read_chunk(PIECE, true).await.map_err(|e| e.to_string())? {
        n_bytes += chunk.bytes.len() as u64;
        if n_bytes > offer.n_bytes {
            break;
        }
        hasher.update(&chunk.bytes);
        to.write_all(&chunk.bytes).map_err(|e| e.to_string())?;
    }
    if n_bytes != offer.n_bytes || hasher.finalize().to_hex().as_str() != offer.blake3 {
        return Err("it is not what was announced: was it being written?".into());
    }
    Ok(())
}
