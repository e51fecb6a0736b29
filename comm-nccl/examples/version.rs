//! Opens NCCL's library, which needs no GPU, and prints its version: `version [PATH]`.

use chimera_comm_nccl::Library;

fn main() -> Result<(), String> {
    let library = std::env::args_os().nth(1).map_or_else(Library::open, Library::open_at)?;
    println!("NCCL {}", library.version()?);
    Ok(())
}
