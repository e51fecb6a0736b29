//! Messages between a member and the host, in JSON after their length.

use quinn::{RecvStream, SendStream};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Sends a message.
pub(crate) async fn tell(send: &mut SendStream, message: &impl Serialize) -> Result<(), String> {
    let text = serde_json::to_vec(message).map_err(|e| e.to_string())?;
    let length = (text.len() as u32).to_le_bytes();
    send.write_all(&[&length, &text[..]].concat()).await.map_err(|e| e.to_string())
}

/// Receives a message of at most this many bytes.
pub(crate) async fn hear<T: DeserializeOwned>(recv: &mut RecvStream, most: usize) -> Option<T> {
    let mut length = [0; 4];
    recv.read_exact(&mut length).await.ok()?;
    let length = u32::from_le_bytes(length) as usize;
    let mut text = vec![0; Some(length).filter(|length| *length <= most)?];
    recv.read_exact(&mut text).await.ok()?;
    serde_json::from_slice(&text).ok()
}
