//! A link between a machine and a host: it passes packets on after a delay.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// Opens a link to a port of this machine that delays each packet, for one client. Returns the port
/// of its other end.
pub(crate) fn relay(port: u16, delay: Duration) -> u16 {
    let socket = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let (near, far) = (Arc::new(socket()), Arc::new(socket()));
    far.connect((Ipv4Addr::LOCALHOST, port)).expect("a peer");
    let at = near.local_addr().expect("bound").port();
    let client = Arc::new(Mutex::new(None));
    let (from, back) = ((Arc::clone(&near), Arc::clone(&client)), Arc::clone(&far));
    carry(
        delay,
        move |packet| receive(&from.0, &from.1, packet),
        move |packet| {
            let _ = back.send(packet);
        },
    );
    carry(
        delay,
        move |packet| far.recv(packet).ok(),
        move |packet| {
            if let Some(client) = *client.lock().expect("no panic") {
                let _ = near.send_to(packet, client);
            }
        },
    );
    at
}

fn receive(
    socket: &UdpSocket,
    client: &Mutex<Option<SocketAddr>>,
    packet: &mut [u8],
) -> Option<usize> {
    let (n, from) = socket.recv_from(packet).ok()?;
    *client.lock().expect("no panic") = Some(from);
    Some(n)
}

/// Passes packets of one direction on.
fn carry(
    delay: Duration,
    receive: impl Fn(&mut [u8]) -> Option<usize> + Send + 'static,
    send: impl Fn(&[u8]) + Send + 'static,
) {
    let (sender, queue) = std::sync::mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut packet = [0; 1 << 16];
        loop {
            // The system may report that a packet before was refused.
            let Some(n) = receive(&mut packet) else { continue };
            if sender.send((Instant::now() + delay, packet[..n].to_vec())).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        for (at, packet) in queue {
            sleep(at.saturating_duration_since(Instant::now()));
            send(&packet);
        }
    });
}
