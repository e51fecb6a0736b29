//! Tensors of an adapter over a transport of host tensors.

use chimera_backend_wgpu::{Options, adapters};
use chimera_core::comm::{Comm, Host, HostStaged, Tag, Threads, conformance};
use chimera_core::device::Device;
use chimera_core::engine::run_threads;
use chimera_core::ids::Rank;

#[test]
fn messages_of_an_adapter_conform() {
    let adapter = adapters().into_iter().next().expect("an adapter");
    let k = adapter.open(Options::default()).expect("it opens");
    let to = |host: Host| k.upload(&host.shape, &host.data).expect("it fits");
    let from = |tensor: &_| Host::new(k.shape(tensor), k.download(tensor).expect("it is there"));
    let ran = run_threads(3, |comm: &mut Threads<Host>| {
        conformance::run(&mut HostStaged::new(k.clone(), comm), to, from);
        Ok(())
    });
    ran.expect("it conforms");
    let aborted = run_threads(2, |comm: &mut Threads<Host>| {
        conformance::run_abort(&mut HostStaged::new(k.clone(), comm), to);
        Ok(())
    });
    aborted.expect("it conforms");
}

/// Writing to a tensor after it was sent does not change the message.
#[test]
fn a_message_is_what_was_sent() {
    let adapter = adapters().into_iter().next().expect("an adapter");
    let k = adapter.open(Options::default()).expect("it opens");
    let n = 1 << 16;
    let tag = |step| Tag::private(0, step);
    let ran = run_threads(1, |comm: &mut Threads<Host>| {
        let mut comm = HostStaged::new(k.clone(), comm);
        let ones = k.upload(&[n], &vec![1.0; n]).expect("it fits");
        let mut sum = k.zeros(&[n]).expect("it fits");
        for step in 0..20 {
            k.accumulate(&mut sum, &ones).expect("it adds");
            comm.send(Rank(0), tag(step), sum.clone()).expect("it goes");
        }
        for step in 0..20 {
            let soon = std::time::Instant::now() + std::time::Duration::from_secs(60);
            let received = comm.recv(Rank(0), tag(step), soon).expect("it comes");
            let taken = k.download(&received).expect("it is there");
            assert!(taken.iter().all(|x| *x == (step + 1) as f32), "{step}: {}", taken[0]);
        }
        Ok(())
    });
    ran.expect("all come");
}
