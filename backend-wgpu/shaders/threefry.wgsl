// Random numbers by counter, for dropout; numbers of 64 bits as two words, the low one first.

fn plus(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2(low, a.y + b.y + select(0u, 1u, low < b.x));
}

fn times(a: u32, b: u32) -> vec2<u32> {
    let low = (a & 0xFFFFu) * (b & 0xFFFFu);
    let first = (a >> 16u) * (b & 0xFFFFu) + (low >> 16u);
    let second = (a & 0xFFFFu) * (b >> 16u) + (first & 0xFFFFu);
    return vec2((second << 16u) | (low & 0xFFFFu), (a >> 16u) * (b >> 16u) + (first >> 16u) + (second >> 16u));
}

fn turn(pair: vec2<u32>, by: u32) -> vec2<u32> {
    let sum = pair.x + pair.y;
    return vec2(sum, ((pair.y << by) | (pair.y >> (32u - by))) ^ sum);
}

/// The random bits of an element, 16: four neighbours, the first of which has a number that four divides, share a block.
fn random_bits(key: vec2<u32>, element: vec2<u32>) -> u32 {
    let block = threefry(key, vec2((element.x >> 2u) | (element.y << 30u), element.y >> 2u));
    let word = select(block.x, block.y, (element.x & 2u) != 0u);
    return select(word & 0xFFFFu, word >> 16u, (element.x & 1u) != 0u);
}

/// A block of Threefry-2x32 with 13 rounds (Salmon et al., 2011).
fn threefry(key: vec2<u32>, counter: vec2<u32>) -> vec2<u32> {
    let keys = vec3(key, 0x1BD11BDAu ^ key.x ^ key.y);
    var pair = counter + key;
    pair = turn(turn(turn(turn(pair, 13u), 15u), 26u), 6u) + vec2(keys.y, keys.z + 1u);
    pair = turn(turn(turn(turn(pair, 17u), 29u), 16u), 24u) + vec2(keys.z, keys.x + 2u);
    pair = turn(turn(turn(turn(pair, 13u), 15u), 26u), 6u) + vec2(keys.x, keys.y + 3u);
    return turn(pair, 17u);
}
