//! Addresses and values of tensors that go in and out, and the refused ones.

use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::cuda_backend::cudarc::driver::DevicePtr;
use candle_core::{DType, Device as CandleDevice, Result, Storage, Tensor};
use chimera_backend_cuda::cuda::Cuda;
use chimera_backend_cuda::{Format, Gpu};
use chimera_core::device::Device;

/// Two candle devices: one with a stream per thread, and one with a stream of its own.
pub(crate) fn devices() -> [CandleDevice; 2] {
    [CandleDevice::new_cuda(0), CandleDevice::new_cuda_with_stream(0)]
        .map(|device| device.expect("candle opens the GPU"))
}

pub(crate) fn gpu(format: Format) -> Gpu<Cuda> {
    let cuda = Cuda::new(0, format).expect("ours opens the GPU");
    Gpu::new(cuda).poisoned()
}

/// The address of a tensor's first element.
fn address(tensor: &Tensor) -> u64 {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else { panic!("{tensor:?} is on no GPU") };
    let stream = storage.device.cuda_stream();
    let (address, bytes) = match &storage.slice {
        CudaStorageSlice::F32(slice) => (slice.device_ptr(&stream).0, 4),
        CudaStorageSlice::BF16(slice) => (slice.device_ptr(&stream).0, 2),
        _ => panic!("{tensor:?} is of another type"),
    };
    address + (layout.start_offset() * bytes) as u64
}

/// The address of a tensor's first element.
fn place(tensor: &<Gpu<Cuda> as Device>::Tensor) -> u64 {
    tensor.memory().address() + tensor.bytes().start as u64
}

fn values(tensor: &Tensor) -> Vec<f32> {
    let host = tensor.to_device(&CandleDevice::Cpu).and_then(|x| x.to_dtype(DType::F32));
    host.and_then(|x| x.flatten_all()?.to_vec1()).expect("values")
}

fn keeps_its_place(format: Format, dtype: DType) -> Result<()> {
    let gpu = gpu(format);
    let numbers = [1.0, -2.0, 3.5, 4.0, 5.0, -6.25];
    let sums = numbers.map(|x| x + 1.0);
    let ones = gpu.upload(&[2, 3], &[1.0; 6]).expect("room");
    for candle in devices() {
        let host = Tensor::from_slice(&numbers, (2, 3), &CandleDevice::Cpu)?.to_dtype(dtype)?;
        let x = host.to_device(&candle)?;
        let mut ours = gpu.from_candle(&x).expect("it is taken");
        assert_eq!(place(&ours), address(&x));
        assert_eq!((ours.element(), ours.shape()), (format.activations(), &[2, 3][..]));
        assert_eq!(gpu.download(&ours).expect("values"), numbers);
        // Candle reads what a kernel of Chimera writes.
        gpu.accumulate(&mut ours, &ones).expect("a sum");
        let back = gpu.to_candle(&ours, &candle).expect("it is given");
        assert_eq!((address(&back), back.dtype(), back.dims()), (address(&x), dtype, &[2, 3][..]));
        assert_eq!((values(&back), values(&x)), (sums.to_vec(), sums.to_vec()));

        // Candle gets Chimera's memory, while tensors of Chimera go on using it.
        let mut own = gpu.from_candle(&host.to_device(&candle)?.copy()?).expect("it is taken");
        gpu.accumulate(&mut own, &ones).expect("a sum");
        assert_eq!(values(&gpu.to_candle(&own, &candle).expect("it is given")), sums);
    }
    Ok(())
}

#[test]
#[ignore = "it takes an emulated GPU: tensors_keep_their_place starts it on one"]
fn f32_keeps_its_place() -> Result<()> {
    keeps_its_place(Format::F32, DType::F32)
}

#[test]
#[ignore = "it takes an emulated GPU: tensors_keep_their_place starts it on one"]
fn bf16_keeps_its_place() -> Result<()> {
    keeps_its_place(Format::Bf16, DType::BF16)
}

/// Tensors of candle and of Chimera that do not start at the beginning of their memory.
#[test]
#[ignore = "it takes an emulated GPU: tensors_keep_their_place starts it on one"]
fn rows_keep_their_place() -> Result<()> {
    let gpu = gpu(Format::F32);
    let numbers: Vec<f32> = (0..20).map(|i| i as f32).collect();
    for candle in devices() {
        let x = Tensor::from_slice(&numbers, (5, 4), &candle)?;
        let middle = x.narrow(0, 1, 3)?;
        let ours = gpu.from_candle(&middle).expect("it is taken");
        assert_eq!(place(&ours), address(&middle));
        assert_eq!(gpu.download(&ours).expect("values"), numbers[4..16]);
        let last = gpu.rows(&ours, 2, 1).expect("a row");
        let back = gpu.to_candle(&last, &candle).expect("it is given");
        assert_eq!((address(&back), values(&back)), (place(&last), numbers[12..16].to_vec()));

        let whole = gpu.upload(&[5, 4], &numbers).expect("room");
        let rows = gpu.rows(&whole, 3, 2).expect("rows");
        let back = gpu.to_candle(&rows, &candle).expect("it is given");
        assert_eq!((address(&back), values(&back)), (place(&rows), numbers[12..].to_vec()));
        let all = gpu.to_candle(&whole, &candle).expect("it is given");
        assert_eq!((address(&all), values(&all)), (place(&whole), numbers.clone()));
        // Back in again: to Chimera it is a candle tensor like any other.
        let again = gpu.from_candle(&all).expect("it is taken");
        assert_eq!((place(&again), gpu.download(&again)), (place(&whole), Ok(numbers.clone())));
    }
    Ok(())
}

#[test]
#[ignore = "it takes an emulated GPU: what_cannot_be_taken_is_refused_in_words starts it on one"]
fn refusals_say_why() -> Result<()> {
    let gpu = gpu(Format::F32);
    let [candle, other] = devices();
    let second = CandleDevice::new_cuda(1)?;
    let zeros = |dtype, device: &CandleDevice| Tensor::zeros((3, 4), dtype, device);
    let x = zeros(DType::F32, &candle)?;
    let taken = [
        (zeros(DType::F32, &CandleDevice::Cpu)?, "not on a GPU"),
        (zeros(DType::F32, &second)?, "on cuda:1"),
        (zeros(DType::F64, &candle)?, "f64: only f32 and bf16"),
        (zeros(DType::BF16, &candle)?, "activations here are f32"),
        (x.t()?, "Tensor::contiguous"),
        (x.narrow(1, 0, 2)?, "Tensor::contiguous"),
        (x.flatten_all()?.narrow(0, 1, 4)?, "boundary of 16 bytes"),
    ];
    for (tensor, why) in taken {
        let refusal = gpu.from_candle(&tensor).expect_err(why).to_string();
        assert!(refusal.contains(why), "{refusal}");
    }
    let ours = gpu.from_candle(&x).expect("it is taken");
    let given = [
        (CandleDevice::Cpu, "not a GPU"),
        (second, "another GPU"),
        (other, "another device of candle's"),
    ];
    for (device, why) in given {
        let refusal = gpu.to_candle(&ours, &device).expect_err(why).to_string();
        assert!(refusal.contains(why), "{refusal}");
    }
    let own_stream = candle.as_cuda_device()?.cuda_stream();
    let refusal = Cuda::on(&own_stream, Format::F32).expect_err("a stream per thread");
    assert!(refusal.to_string().contains("new_cuda_with_stream"), "{refusal}");
    Ok(())
}
