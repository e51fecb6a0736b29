//! Connections between hosts, which spread the news of a death to all of them.
//!
//! The system closes the connections of a process that ends, however it ends. The ranks of a job on
//! several hosts form a tree: the first rank of each host is connected to rank 0, the others to the
//! first rank of their host. A rank that sees its connection close reports the peer as dead and
//! forwards the report on all other connections. Silence proves nothing: timeouts handle a stopped
//! rank or a network that is down.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

use chimera_core::ids::Rank;

use crate::detection::door::{Door, HELLO, Token, prepare, read_hello};
use crate::shared::lock;

/// Time for the ranks to connect, after which the missing ones are reported.
const TO_JOIN: Duration = Duration::from_secs(30);
/// Time between two attempts to connect.
const RETRY: Duration = Duration::from_secs(1);
/// The most connections from unidentified peers at a time.
const MAX_STRANGERS: usize = 64;
/// The connecting rank's first word after the answer, which confirms the connection.
const JOINED: u32 = u32::MAX;

/// Reports a problem to the user.
pub(crate) type Warn = fn(&str);

pub(crate) struct Links(Arc<Mutex<Tree>>);

/// The state of the connections.
struct Tree {
    me: Rank,
    doors: Vec<Door>,
    listener: Option<TcpListener>,
    /// Ranks that have not connected to this one yet.
    awaited: Vec<Rank>,
    /// Time at which the missing ranks are reported.
    deadline: Instant,
    links: Vec<Link>,
    /// Ranks that ended, as a closed connection or another rank reports.
    ended: Vec<Rank>,
    /// Deaths that this rank has forwarded.
    told: Vec<Rank>,
    warn: Warn,
}

struct Link {
    stream: TcpStream,
    state: State,
    /// Received bytes of an incomplete message.
    bytes: Vec<u8>,
}

/// Progress of a connection.
#[derive(Clone, Copy, PartialEq)]
enum State {
    /// The peer is unidentified.
    Stranger,
    /// The peer is this rank, which may still give up and try again.
    Answered(Rank),
    /// The connection is this rank's; when it closes, the rank has ended.
    Joined(Rank),
}

/// Returns the parent of each rank, from the first rank on its host; `None` for a single host.
pub(crate) fn parents(firsts: &[Rank]) -> Option<Vec<Rank>> {
    let parent = |(rank, first): (Rank, &Rank)| if *first == rank { Rank(0) } else { *first };
    let is_one_host = firsts.iter().all(|first| *first == Rank(0));
    (!is_one_host).then(|| (0..).map(Rank).zip(firsts).map(parent).collect())
}

impl Links {
    /// Connects `me` to its parent, and accepts its children, both in the background.
    pub(crate) fn open(
        me: Rank,
        parents: &[Rank],
        doors: Vec<Door>,
        listener: Option<TcpListener>,
        warn: Warn,
    ) -> io::Result<Links> {
        let ranks = (0..).map(Rank).zip(parents);
        let children = ranks.filter(|(rank, parent)| **parent == me && *rank != me);
        let awaited = children.map(|(rank, _)| rank).collect();
        let parent = parents.get(me.index()).copied().filter(|parent| *parent != me);
        let tree = Arc::new(Mutex::new(Tree {
            me,
            doors,
            listener,
            awaited,
            deadline: Instant::now() + TO_JOIN,
            links: Vec::new(),
            ended: Vec::new(),
            told: Vec::new(),
            warn,
        }));
        if let Some(parent) = parent {
            let tree = Arc::downgrade(&tree);
            Builder::new().name("links".into()).spawn(move || connect(parent, &tree))?;
        }
        Ok(Links(tree))
    }

    /// Returns the ranks that are known to have ended.
    pub(crate) fn ended(&self) -> Vec<Rank> {
        let mut tree = lock(&self.0);
        tree.look();
        tree.ended.clone()
    }

    /// Reports deaths to all connected ranks.
    pub(crate) fn tell(&self, dead: &[Rank]) {
        let mut tree = lock(&self.0);
        for rank in dead {
            if !tree.told.contains(rank) {
                tree.told.push(*rank);
                tree.links.iter_mut().for_each(|link| link.tell(*rank));
            }
        }
    }
}

/// Connects to `parent`, trying again until the deadline.
fn connect(parent: Rank, tree: &Weak<Mutex<Tree>>) {
    let known = |tree: Arc<Mutex<Tree>>| {
        let tree = lock(&tree);
        let token = tree.doors.get(tree.me.index())?.token;
        Some((tree.me, token, tree.doors.get(parent.index())?.clone(), tree.deadline))
    };
    let Some((me, token, door, deadline)) = tree.upgrade().and_then(known) else { return };
    while Instant::now() < deadline && !door.addresses.is_empty() {
        if let Ok(mut stream) = door.enter(me, &token)
            && stream.write_all(&JOINED.to_le_bytes()).is_ok()
        {
            if let Some(tree) = tree.upgrade() {
                let link = Link { stream, state: State::Joined(parent), bytes: Vec::new() };
                lock(&tree).join(link);
            }
            return;
        }
        sleep(RETRY);
    }
}

impl Tree {
    /// Handles all that has arrived.
    fn look(&mut self) {
        self.accept();
        for mut link in std::mem::take(&mut self.links) {
            match self.take_in(&mut link) {
                Ok(()) => self.links.push(link),
                Err(error) => self.close(&link, &error),
            }
        }
        if !self.awaited.is_empty() && Instant::now() > self.deadline {
            let missing = std::mem::take(&mut self.awaited);
            let missing: Vec<_> = missing.iter().map(Rank::to_string).collect();
            self.report(&missing.join(", "), "cannot connect to it (is there a firewall?)");
        }
        if self.awaited.is_empty() {
            self.listener = None;
            // A stranger with the answer may take a closed connection for this rank's end.
            self.links.retain(|link| link.state != State::Stranger);
        }
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        while let Ok((stream, _)) = listener.accept() {
            if prepare(&stream).is_err() {
                continue;
            }
            let is_stranger = |link: &Link| link.state == State::Stranger;
            if self.links.iter().filter(|link| is_stranger(link)).count() >= MAX_STRANGERS
                && let Some(oldest) = self.links.iter().position(is_stranger)
            {
                self.links.remove(oldest);
            }
            self.links.push(Link { stream, state: State::Stranger, bytes: Vec::new() });
        }
    }

    /// Reads what a connection has brought. An error ends the connection.
    fn take_in(&mut self, link: &mut Link) -> io::Result<()> {
        let mut bytes = [0; 256];
        match link.stream.read(&mut bytes) {
            Ok(0) => return Err(ErrorKind::ConnectionReset.into()),
            Ok(n) => link.bytes.extend_from_slice(&bytes[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(e) => return Err(e),
        }
        if link.state == State::Stranger {
            let Some(hello) = link.bytes.first_chunk::<HELLO>() else { return Ok(()) };
            let (rank, token) = read_hello(hello);
            link.bytes.drain(..HELLO);
            link.stream.write_all(&self.answer(rank, &token)?)?;
            link.state = State::Answered(rank);
        }
        while let Some(word) = link.bytes.first_chunk().copied().map(u32::from_le_bytes) {
            link.bytes.drain(..size_of::<u32>());
            self.hear(link, word)?;
        }
        Ok(())
    }

    /// Returns the answer to a stranger that claims to be `rank`.
    fn answer(&self, rank: Rank, token: &Token) -> io::Result<Token> {
        let is_it = |door: &Door| door.token == *token && self.awaited.contains(&rank);
        let is_known = self.doors.get(rank.index()).is_some_and(is_it);
        let own = self.doors.get(self.me.index()).filter(|_| is_known);
        own.map(|door| door.token).ok_or_else(|| ErrorKind::PermissionDenied.into())
    }

    fn hear(&mut self, link: &mut Link, word: u32) -> io::Result<()> {
        match link.state {
            State::Answered(rank) if word == JOINED => {
                link.state = State::Joined(rank);
                self.awaited.retain(|awaited| *awaited != rank);
                self.told.iter().for_each(|rank| link.tell(*rank));
            }
            State::Joined(_) if (word as usize) < self.doors.len() => self.note(Rank(word)),
            _ => return Err(ErrorKind::InvalidData.into()),
        }
        Ok(())
    }

    fn join(&mut self, mut link: Link) {
        self.told.iter().for_each(|rank| link.tell(*rank));
        self.links.push(link);
    }

    fn note(&mut self, rank: Rank) {
        if rank != self.me && !self.ended.contains(&rank) {
            self.ended.push(rank);
        }
    }

    /// Decides what the end of a connection means.
    fn close(&mut self, link: &Link, error: &io::Error) {
        let State::Joined(rank) = link.state else { return };
        match error.kind() {
            ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => {
                self.note(rank);
            }
            _ => self.report(&rank.to_string(), &format!("has lost its connection to it: {error}")),
        }
    }

    fn report(&self, whose: &str, what: &str) {
        let me = self.me;
        (self.warn)(&format!(
            "{me} watches {whose}, which {what}; a death there is found when a wait has timed out"
        ));
    }
}

impl Link {
    /// Sends a death to the peer, if it has joined.
    fn tell(&mut self, dead: Rank) {
        if let State::Joined(_) = self.state {
            let _ = self.stream.write_all(&dead.0.to_le_bytes()); // reading detects a closed connection
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the ends of the first `n` of three ranks in this process; 1 and 2 share a host.
    fn ends(n: usize) -> (Vec<Door>, Vec<Option<Links>>) {
        let parents = parents(&[0, 1, 1].map(Rank)).expect("two hosts");
        assert_eq!(parents, [0, 0, 1].map(Rank));
        let (door0, listener0) = Door::open().expect("an address");
        let (door1, listener1) = Door::open().expect("an address");
        let doors = vec![door0, door1, Door::closed()];
        let listeners = [Some(listener0), Some(listener1), None];
        let open = |(rank, listener)| {
            let opened = Links::open(Rank(rank), &parents, doors.clone(), listener, |_| {});
            Some(opened.expect("links"))
        };
        (doors.clone(), (0..).zip(listeners).take(n).map(open).collect())
    }

    fn n_joined(links: &Links) -> usize {
        let tree = lock(&links.0);
        tree.links.iter().filter(|link| matches!(link.state, State::Joined(_))).count()
    }

    /// Polls all connections until `is_done`.
    fn until(all: &[Option<Links>], is_done: impl Fn(&[Option<Links>]) -> bool) {
        let deadline = Instant::now() + TO_JOIN;
        while !is_done(all) {
            assert!(Instant::now() < deadline, "it never happens");
            all.iter().flatten().for_each(|links| drop(links.ended()));
            std::thread::yield_now();
        }
    }

    fn until_joined(all: &[Option<Links>]) {
        let want = [1, 2, 1];
        until(all, |all| all.iter().flatten().zip(want).all(|(links, n)| n_joined(links) == n));
    }

    fn ended(links: Option<&Links>) -> Vec<Rank> {
        links.map(Links::ended).unwrap_or_default()
    }

    #[test]
    fn a_death_is_known_on_the_other_host() {
        let (_, mut all) = ends(3);
        until_joined(&all);
        assert!(all.iter().all(|links| ended(links.as_ref()).is_empty()));
        all[2] = None; // its connections close
        until(&all, |all| ended(all[1].as_ref()) == [Rank(2)]);
        assert_eq!(ended(all[0].as_ref()), []);
        all[1].as_ref().expect("it lives").tell(&[Rank(2)]);
        until(&all, |all| ended(all[0].as_ref()) == [Rank(2)]);
    }

    #[test]
    fn the_death_of_rank_0_and_of_the_first_of_a_host_are_known() {
        let (_, mut all) = ends(3);
        until_joined(&all);
        all[0] = None;
        until(&all, |all| ended(all[1].as_ref()) == [Rank(0)]);
        all[1].as_ref().expect("it lives").tell(&[Rank(0)]);
        until(&all, |all| ended(all[2].as_ref()) == [Rank(0)]);

        let (_, mut all) = ends(3);
        until_joined(&all);
        all[1] = None;
        until(&all, |all| [0, 2].iter().all(|rank| ended(all[*rank].as_ref()) == [Rank(1)]));
    }

    /// Returns the result of `work`, polling all connections meanwhile.
    fn meanwhile<T: Send>(all: &[Option<Links>], work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let work = scope.spawn(work);
            until(all, |_| work.is_finished());
            work.join().expect("no panic")
        })
    }

    #[test]
    fn strangers_are_nobody() {
        let (doors, all) = ends(1);
        let (door, token) = (doors[0].clone(), doors[1].token);
        let silent = TcpStream::connect(door.addresses.last().expect("an address"));
        let wrong = meanwhile(&all, || door.enter(Rank(1), &Door::closed().token));
        let not_mine = meanwhile(&all, || door.enter(Rank(2), &doors[2].token));
        assert!(silent.is_ok() && wrong.is_err() && not_mine.is_err());
        // A peer that gives up before it has joined is not dead.
        let given_up = meanwhile(&all, || door.enter(Rank(1), &token));
        drop((silent, given_up.expect("the answer")));
        let mut joined = meanwhile(&all, || door.enter(Rank(1), &token)).expect("the answer");
        joined.write_all(&JOINED.to_le_bytes()).expect("sent");
        until(&all, |all| all.iter().flatten().all(|links| n_joined(links) == 1));
        assert_eq!(ended(all[0].as_ref()), []);
        // All awaited ranks have joined, so nobody else is let in.
        assert!(lock(&all[0].as_ref().expect("it lives").0).listener.is_none());
        drop(joined);
        until(&all, |all| ended(all[0].as_ref()) == [Rank(1)]);
    }
}
