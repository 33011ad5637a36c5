//! "Did you mean": the known word nearest to an unknown one.

/// The nearest of `known`, when a typing error explains the difference; else the only one that
/// begins like this.
pub fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let text = word.to_lowercase().replace('-', "_");
    let word: Vec<char> = text.chars().take(64).collect();
    let allowed = 1 + word.len() / 4;
    known
        .iter()
        .map(|candidate| (distance(&word, &candidate.replace('-', "_")), *candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
        .or_else(|| by_prefix(&text, known))
}

/// The only one that begins with these three letters or more.
fn by_prefix<'k>(text: &str, known: &[&'k str]) -> Option<&'k str> {
    let mut longer = known.iter().filter(|known| text.len() >= 3 && known.starts_with(text));
    longer.next().copied().filter(|_| longer.next().is_none())
}

/// Levenshtein distance, a swap of neighbours counting one.
fn distance(a: &[char], b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let substitute = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = substitute.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn finds_typing_errors_and_nothing_else() {
        let known = ["address", "port", "protocol", "backends"];
        assert_eq!(nearest("adress", &known), Some("address"));
        assert_eq!(nearest("prot", &known), Some("port"));
        assert_eq!(nearest("backend", &known), Some("backends"));
        assert_eq!(nearest("Protocol", &known), Some("protocol"));
        assert_eq!(nearest("colour", &known), None);
        assert_eq!(nearest("", &known), None);
        assert_eq!(nearest("prot", &["address", "protocol"]), Some("protocol"));
        assert_eq!(nearest("prot", &["protocol", "protocols"]), None);
        assert_eq!(nearest("pr", &["protocol"]), None);
    }
}
