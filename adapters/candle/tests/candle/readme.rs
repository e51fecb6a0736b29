//! The Rust code of README.md is the example `toy`, which is short and trains.

#[path = "../../examples/toy.rs"]
mod toy;

#[test]
fn the_readme_has_the_example_in_less_than_25_lines() {
    let example = include_str!("../../examples/toy.rs");
    let (_, example) = example.split_once("\n\n").expect("a line on what it is");
    let example = example.replace("pub(crate) fn main", "fn main");
    let readme = include_str!("../../../../README.md");
    let blocks: Vec<&str> = readme.split("```rust\n").skip(1).collect();
    let [block] = blocks[..] else { panic!("{} blocks", blocks.len()) };
    assert_eq!(block.split("```").next(), Some(&*example));
    assert!(example.lines().count() < 25);
}

#[test]
fn the_example_trains() -> Result<(), Box<dyn std::error::Error>> {
    toy::main()
}
