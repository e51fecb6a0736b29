//! A transport of three functions does everything that a transport must do.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use chimera_engine::comm::{CommError, Endpoint, Framed, Host, Process, Wire, conformance};
use chimera_engine::fault::{Class, Fault};
use chimera_schedule::ids::Rank;

/// The frames from one rank to another, until one of them closes.
#[derive(Default)]
struct Pipe {
    frames: Mutex<(VecDeque<Vec<u8>>, bool)>,
    changed: Condvar,
}

struct Pipes {
    me: u32,
    n: u32,
    /// The pipe from rank `a` to rank `b` is at `a * n + b`.
    all: Arc<Vec<Pipe>>,
}

impl Pipes {
    fn pipe(&self, from: u32, to: u32) -> &Pipe {
        &self.all[(from * self.n + to) as usize]
    }
}

impl Wire for Pipes {
    fn send(&self, to: Rank, frame: &[u8]) -> io::Result<()> {
        let pipe = self.pipe(self.me, to.0);
        pipe.frames.lock().unwrap().0.push_back(frame.to_vec());
        pipe.changed.notify_all();
        Ok(())
    }

    fn recv(&self, from: Rank) -> io::Result<Vec<u8>> {
        let pipe = self.pipe(from.0, self.me);
        let mut frames = pipe.frames.lock().unwrap();
        loop {
            match frames.0.pop_front() {
                Some(frame) => return Ok(frame),
                None if frames.1 => return Err(io::ErrorKind::UnexpectedEof.into()),
                None => frames = pipe.changed.wait(frames).unwrap(),
            }
        }
    }

    fn close(&self) {
        for other in 0..self.n {
            for pipe in [self.pipe(self.me, other), self.pipe(other, self.me)] {
                pipe.frames.lock().unwrap().1 = true;
                pipe.changed.notify_all();
            }
        }
    }
}

/// Runs `act` on each rank with its end.
fn on_ranks(n: u32, act: impl Fn(Framed<Pipes>) + Sync) {
    let all: Arc<Vec<Pipe>> = Arc::new((0..n * n).map(|_| Pipe::default()).collect());
    std::thread::scope(|scope| {
        for me in 0..n {
            let (act, wire) = (&act, Pipes { me, n, all: Arc::clone(&all) });
            scope.spawn(move || act(Framed::new(wire, Rank(me), n)));
        }
    });
}

#[test]
fn it_conforms() {
    for n in [1, 2, 3] {
        on_ranks(n, |mut comm| {
            conformance::run(&mut comm, |host| host, Host::clone);
            conformance::run_abort(&mut comm, |host| host);
        });
    }
}

#[test]
fn an_end_that_is_gone_is_known() {
    on_ranks(3, |comm| conformance::run_loss(comm, |host| host));
}

const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn ranks_leave_together() {
    on_ranks(3, |mut comm| {
        if comm.rank() == Rank(1) {
            std::thread::sleep(Duration::from_millis(50)); // the others wait for it
        }
        assert_eq!(comm.control().why_over(), None);
        let control = comm.control();
        comm.close(PATIENCE).expect("all leave");
        assert_eq!(control.why_over(), None, "who has left properly is not lost");
    });
}

#[test]
fn a_rank_that_ends_without_a_good_bye_is_named() {
    on_ranks(3, |mut comm| {
        if comm.rank() == Rank(2) {
            return;
        }
        let (control, deadline) = (comm.control(), Instant::now() + PATIENCE);
        let why = loop {
            match control.why_over() {
                Some(why) => break why,
                None => assert!(Instant::now() < deadline, "nobody noticed"),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert!(matches!(&why, CommError::Lost { from: Rank(2), .. }), "{why:?}");
        let left = comm.close(PATIENCE).expect_err("one is lost").to_string();
        assert_eq!(left, "rank 2 ended before it sent its good-bye");
    });
}

#[test]
fn a_rank_that_does_not_leave_is_named() {
    let all_tried = std::sync::Barrier::new(2);
    on_ranks(2, |mut comm| {
        if comm.rank() == Rank(0) {
            let left = comm.close(Duration::from_millis(20));
            assert!(matches!(left, Err(CommError::Timeout { from: Rank(1), .. })), "{left:?}");
        }
        all_tried.wait();
    });
}

#[test]
fn the_cause_of_an_abort_is_why_the_job_is_over() {
    let all_looked = std::sync::Barrier::new(2);
    on_ranks(2, |mut comm| {
        let cause = Fault::new(Class::NonFinite, Rank(0), "as an example");
        if comm.rank() == Rank(0) {
            comm.abort(&cause);
        }
        let (control, deadline) = (comm.control(), Instant::now() + PATIENCE);
        while control.why_over().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(control.why_over(), Some(CommError::Aborted(cause)));
        all_looked.wait();
    });
}

/// A wire that accepts no frames.
struct Full;

impl Wire for Full {
    fn send(&self, _: Rank, _: &[u8]) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "the frame is too long"))
    }

    fn recv(&self, _: Rank) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

#[test]
fn a_frame_that_is_not_taken_is_said_to_who_sends_it() {
    let refused = Framed::new(Full, Rank(0), 2).send_bytes(Rank(1), vec![1]);
    let refused = refused.expect_err("a frame is too long").to_string();
    assert!(refused.contains("cannot send to rank 1: the frame is too long"), "{refused}");
}
