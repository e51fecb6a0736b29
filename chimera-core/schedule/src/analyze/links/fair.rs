//! Max-min fair rates: no flow can be faster without making one slower that is not faster
//! (Bertsekas and Gallager, Data Networks, 6.5.2).

use super::topology::Resource;

/// The resources that a flow crosses.
pub(super) type Path = std::rc::Rc<super::topology::LinkPath>;

/// Returns the rate of each flow, in bytes per second. All rates grow alike until a resource is
/// full, whose flows keep what they have; the others grow on.
pub(super) fn rates(paths: &[&Path], resources: &[Resource]) -> Vec<f64> {
    let mut left: Vec<f64> = resources.iter().map(|resource| resource.bytes_per_s).collect();
    let mut crossing: Vec<Vec<usize>> = vec![Vec::new(); resources.len()];
    let mut caps = vec![f64::INFINITY; paths.len()];
    for (flow, path) in paths.iter().enumerate() {
        for &resource in &path.resources {
            if resources[resource].is_dedicated {
                caps[flow] = caps[flow].min(resources[resource].bytes_per_s);
            } else {
                crossing[resource].push(flow);
            }
        }
    }
    let mut used: Vec<usize> = (0..resources.len()).filter(|r| !crossing[*r].is_empty()).collect();
    let mut growing: Vec<usize> = crossing.iter().map(Vec::len).collect();
    let mut rates: Vec<Option<f64>> = vec![None; paths.len()];
    let mut n_open = paths.len();
    while n_open > 0 {
        used.retain(|resource| growing[*resource] > 0);
        let shares = used.iter().map(|r| (left[*r] / growing[*r] as f64, Some(*r)));
        let capped = caps.iter().zip(&rates).filter(|(_, rate)| rate.is_none());
        let least_cap = capped.map(|(cap, _)| *cap).fold(f64::INFINITY, f64::min);
        let least = shares.fold((least_cap, None), |a, b| if b.0 < a.0 { b } else { a });
        let share = least.0.max(0.0);
        let full: Vec<usize> = match least.1 {
            Some(resource) => crossing[resource].clone(),
            None => (0..paths.len()).filter(|flow| caps[*flow] <= share).collect(),
        };
        for flow in full {
            if rates[flow].is_some() {
                continue;
            }
            rates[flow] = Some(share);
            n_open -= 1;
            for &resource in &paths[flow].resources {
                if !resources[resource].is_dedicated {
                    left[resource] = (left[resource] - share).max(0.0);
                    growing[resource] -= 1;
                }
            }
        }
    }
    rates.into_iter().map(Option::unwrap_or_default).collect()
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::super::topology::LinkPath;
    use super::*;

    fn rates_of(paths: &[&[usize]], bandwidths: &[f64], dedicated: &[usize]) -> Vec<f64> {
        let resource = |(number, bytes_per_s): (usize, &f64)| Resource {
            name: String::new(),
            bytes_per_s: *bytes_per_s,
            is_dedicated: dedicated.contains(&number),
        };
        let resources: Vec<Resource> = bandwidths.iter().enumerate().map(resource).collect();
        let path = |path: &&[usize]| Rc::new(LinkPath { resources: path.to_vec(), latency: 0.0 });
        let paths: Vec<Path> = paths.iter().map(path).collect();
        rates(&paths.iter().collect::<Vec<_>>(), &resources)
    }

    #[test]
    fn rates_are_those_of_the_textbook() {
        // One flow over both links, one on each: the first link is full at 1/3 of 3.
        assert_eq!(rates_of(&[&[0, 1], &[0], &[0], &[1]], &[3.0, 4.0], &[]), [1.0, 1.0, 1.0, 3.0]);
        assert_eq!(rates_of(&[&[0], &[0]], &[8.0], &[]), [4.0, 4.0]);
        assert_eq!(rates_of(&[&[0], &[0]], &[8.0], &[0]), [8.0, 8.0]);
        assert_eq!(rates_of(&[&[0, 1], &[1]], &[1.0, 8.0], &[0]), [1.0, 7.0]);
        assert_eq!(rates_of(&[], &[1.0], &[]), [0.0; 0]);
    }
}
