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

/// The random word of an element: two neighbours, the first of which has an even number, share a block.
fn random_word(key: vec2<u32>, element: vec2<u32>) -> u32 {
    let block = threefry(key, vec2((element.x >> 1u) | (element.y << 31u), element.y >> 1u));
    return select(block.x, block.y, (element.x & 1u) == 1u);
}

/// A block of Threefry-2x32 with 20 rounds (Salmon et al., 2011).
fn threefry(key: vec2<u32>, counter: vec2<u32>) -> vec2<u32> {
    let keys = vec3(key, 0x1BD11BDAu ^ key.x ^ key.y);
    var pair = counter + key;
    for (var four = 0u; four < 5u; four++) {
        if four % 2u == 0u {
            pair = turn(turn(turn(turn(pair, 13u), 15u), 26u), 6u);
        } else {
            pair = turn(turn(turn(turn(pair, 17u), 29u), 16u), 24u);
        }
        pair += vec2(keys[(four + 1u) % 3u], keys[(four + 2u) % 3u] + four + 1u);
    }
    return pair;
}
