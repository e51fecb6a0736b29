//! Transfers between host and device, and between ranks.

use super::trials::{Trials, f32s, is_same};
use super::{EMPTY, LARGE, Outcome};
use crate::device::{
    Device, DeviceError, Reload, Result, flush, imported, record_ready, wait_ready,
};

/// Shapes of tensors that are copied.
const COPIED: [&[usize]; 4] = [&[1], &[33], &[5, 3], LARGE];

pub(super) fn upload<D: Device>(trials: &mut Trials<'_, D>) -> Outcome {
    let device = trials.device;
    let mut data = f32s(&trials.normal(&[2, 3, 5]));
    data[..5].copy_from_slice(&[-0.0, 1e-40, f32::MAX, f32::NEG_INFINITY, f32::NAN]);
    let odd = [&[30][..], &[1, 30], &[15, 2], &[2, 3, 5]].map(|shape| (shape, data.clone()));
    let other = [&EMPTY[..], &COPIED].concat();
    let other = other.into_iter().map(|shape| (shape, f32s(&trials.normal(shape))));
    let element = device.bytes(&device.zeros(&[1])?);
    for (shape, data) in odd.into_iter().chain(other.collect::<Vec<_>>()) {
        let at = format!("{shape:?}");
        for tensor in [device.upload(shape, &data)?, device.upload_vec(shape, data.clone())?] {
            trials.require(device.shape(&tensor) == shape, &at, "another shape")?;
            let same = is_same(&device.download(&tensor)?, &data);
            trials.require(same, &at, "download gives other bits than upload was given")?;
            let bytes = device.bytes(&tensor);
            let is_right = bytes == element * data.len() as u64;
            trials.require(is_right, &at, &format!("{bytes} bytes, {element} an element"))?;
        }
    }
    Ok(())
}

/// Copies are appended to the words that are there, including copies of rows and of empty tensors.
pub(super) fn download_into<D: Device>(trials: &mut Trials<'_, D>) -> Outcome {
    let device = trials.device;
    let data = f32s(&trials.normal(&[11, 7]));
    let whole = device.upload(&[11, 7], &data)?;
    let (mut got, mut expected) = (vec![7.0], vec![7.0]);
    for (start, len) in [(0, 11), (3, 4), (10, 1), (11, 0)] {
        device.download_into(&device.rows(&whole, start, len)?, &mut got)?;
        expected.extend(&data[7 * start..7 * (start + len)]);
        let at = format!("{len} rows from {start} after others");
        trials.require(is_same(&got, &expected), &at, "other bits than those of the rows")?;
    }
    Ok(())
}

pub(super) fn download_all<D: Device>(trials: &mut Trials<'_, D>) -> Outcome {
    let device = trials.device;
    trials.require(device.download_all(&[])?.is_empty(), "no tensors", "something comes")?;
    let shapes = [&COPIED[..], &EMPTY, &COPIED[..2]].concat();
    let data: Vec<Vec<f32>> = shapes.iter().map(|shape| f32s(&trials.normal(shape))).collect();
    let tensors = shapes.iter().zip(&data).map(|(shape, data)| device.upload(shape, data));
    let tensors = tensors.collect::<Result<Vec<_>>>()?;
    let got = device.download_all(&tensors.iter().collect::<Vec<_>>())?;
    let got = got.into_iter().zip(&data).map(|(elements, data)| elements.to_f32(data.len()));
    let got: Vec<_> = got.collect();
    let same = got.len() == data.len() && got.iter().zip(&data).all(|(x, y)| is_same(x, y));
    trials.require(same, "several tensors", "other bits than those of each")
}

/// Rows of a tensor that are downloaded as words of their type can be uploaded again.
pub(super) fn words<D: Device>(trials: &mut Trials<'_, D>) -> Outcome {
    let device = trials.device;
    let data = f32s(&trials.normal(&[11, 7]));
    let whole = device.upload(&[11, 7], &data)?;
    for (start, len) in [(0, 11), (3, 4), (10, 1), (11, 0)] {
        let (at, rows) = (format!("{len} rows from {start}"), device.rows(&whole, start, len)?);
        let dtype = device.dtype(&rows);
        let mut words = vec![7.0];
        device.download_words(&rows, &mut words)?;
        let is_behind = words.remove(0) == 7.0;
        let is_whole = is_behind && Some(words.len()) == dtype.n_words(7 * len);
        trials.require(is_whole, &at, "words are missing")?;
        let came = device.upload_words(&[len, 7], dtype, words)?;
        let is_right = device.shape(&came) == [len, 7]
            && is_same(&device.download(&came)?, &data[7 * start..7 * (start + len)]);
        trials.require(is_right, &at, "other bits than were sent")?;
    }
    Ok(())
}

/// Offloaded tensors come back, in any order.
pub(super) fn offload<D: Device>(trials: &mut Trials<'_, D>) -> Outcome {
    let device = trials.device;
    for shape in [&COPIED[..], &EMPTY].concat() {
        let mut data = [(); 2].map(|()| f32s(&trials.normal(shape)));
        let odd = [-0.0, f32::NEG_INFINITY, f32::NAN];
        data[0].iter_mut().zip(odd).for_each(|(element, odd)| *element = odd);
        comes_back(trials, &format!("{shape:?}"), shape, &data, |device, data| {
            device.upload(shape, data)
        })?;
    }
    let whole = f32s(&trials.normal(&[11, 7]));
    let whole_tensor = device.upload(&[11, 7], &whole)?;
    let parts = [3, 6].map(|start| whole[7 * start..7 * (start + 4)].to_vec());
    comes_back(trials, "rows", &[4, 7], &parts, |device, part| {
        device.rows(&whole_tensor, if part == &parts[0][..] { 3 } else { 6 }, 4)
    })
}

/// Offloads and reloads two tensors, and again while others are offloaded.
fn comes_back<D: Device>(
    trials: &mut Trials<'_, D>,
    at: &str,
    shape: &[usize],
    data: &[Vec<f32>; 2],
    make: impl Fn(&D, &[f32]) -> Result<D::Tensor>,
) -> Outcome {
    let device = trials.device;
    let offload = || -> Result<Reload<D>> {
        device.offload(data.iter().map(|data| make(device, data)).collect::<Result<_>>()?)
    };
    let [first, second] = [offload()?, offload()?];
    for reload in [second, first, offload()?] {
        let came = reload(device)?;
        trials.require(came.len() == data.len(), at, "some are missing")?;
        for (tensor, data) in came.iter().zip(data) {
            let is_right =
                device.shape(tensor) == shape && is_same(&device.download(tensor)?, data);
            trials.require(is_right, at, "other bits than went")?;
        }
    }
    Ok(())
}

/// A fetch copies the tensor as it was when the fetch began.
pub(super) fn fetch<D: Device>(trials: &mut Trials<'_, D>) -> Outcome {
    let device = trials.device;
    for shape in [&COPIED[..], &EMPTY].concat() {
        let data = f32s(&trials.normal(shape));
        let mut tensor = device.upload(shape, &data)?;
        let ones = device.upload(shape, &vec![1.0; data.len()])?;
        let fetch = || device.asynchronous().map_or(Ok(None), |device| device.fetch(&tensor));
        let fetches = [fetch()?, fetch()?];
        device.accumulate(&mut tensor, &ones)?;
        for (number, fetch) in fetches.into_iter().enumerate() {
            let Some(mut fetch) = fetch else { continue };
            if number == 1 {
                fetch.is_there()?; // asking changes nothing
            }
            let mut got = Vec::new();
            fetch.finish(&mut got)?;
            let same = is_same(&got, &data);
            trials.require(same, &format!("{shape:?}"), "other bits than when it began")?;
        }
    }
    Ok(())
}

/// A tensor is accumulated into on another thread, and comes back.
pub(super) fn import<D: Device>(trials: &mut Trials<'_, D>) -> Outcome {
    let device = trials.device;
    for shape in [&COPIED[..], &EMPTY].concat() {
        let data = f32s(&trials.normal(shape));
        let tensor = device.join(&[&device.upload(shape, &data)?])?;
        record_ready(device, &tensor)?;
        let elsewhere = device.clone();
        let added = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new();
            let added = thread.spawn_scoped(scope, move || doubled(&elsewhere, tensor));
            let added = added.map_err(DeviceError::other)?;
            added.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        let sum = imported(device, added?)?;
        wait_ready(device, &sum)?;
        let twice: Vec<f32> = data.iter().map(|x| x + x).collect();
        let same = device.shape(&sum) == shape && is_same(&device.download(&sum)?, &twice);
        trials.require(same, &format!("{shape:?} of another thread"), "is not the sum")?;
    }
    Ok(())
}

/// Returns twice a tensor of another rank, ready to be passed on.
fn doubled<D: Device>(device: &D, tensor: D::Tensor) -> Result<D::Tensor> {
    let tensor = imported(device, tensor)?;
    wait_ready(device, &tensor)?;
    let mut sum = device.join(&[&tensor])?;
    device.accumulate(&mut sum, &tensor)?;
    record_ready(device, &sum)?;
    flush(device)?;
    Ok(sum)
}

/// Marks are reached in order, each once.
pub(super) fn clock<D: Device>(trials: &mut Trials<'_, D>) -> Outcome {
    let device = trials.device;
    let Some(mut clock) = device.clock()? else { return Ok(()) };
    let x = device.upload(&[130, 257], &f32s(&trials.normal(&[130, 257])))?;
    let mut sum = device.zeros(&[130, 257])?;
    for n_marks in [1, 3] {
        for _ in 0..n_marks {
            device.accumulate(&mut sum, &x)?;
            clock.mark();
        }
        device.accumulate(&mut sum, &x)?;
        let ages = clock.ages()?;
        let (at, told) = (format!("{n_marks} mark(s)"), format!("{ages:?} seconds ago"));
        let is_sound = ages.len() == n_marks && ages.iter().all(|age| age.is_finite());
        trials.require(is_sound && ages.is_sorted_by(|a, b| a >= b), &at, &told)?;
    }
    Ok(())
}
