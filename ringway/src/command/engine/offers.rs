//! Offers of `ringway engine bid`: a line for each segment.

use std::collections::HashMap;
use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;

use anyhow::Context as _;
use ringway_api::error::Error;
use ringway_engine::apps::Offer;

const FORMAT: &str = "write SEGMENT PRICE CREATIVE, three numbers, a line for each segment";

/// The offers of a file.
pub fn read(path: &Path) -> anyhow::Result<HashMap<u64, Offer>> {
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("{}: check that it is there", path.display()))?;
    let wrong = |Wrong { line, why }: Wrong| {
        let place = line.map_or_else(String::new, |line| format!(":{line}"));
        Error::configuration(format!("{}{place}: {why}", path.display()), FORMAT).into()
    };
    parse(&text).map_err(wrong)
}

/// An error and its line, from 1.
#[derive(Debug, PartialEq, Eq)]
struct Wrong {
    line: Option<usize>,
    why: String,
}

fn parse(text: &str) -> Result<HashMap<u64, Offer>, Wrong> {
    let mut offers: HashMap<u64, (Offer, usize)> = HashMap::new();
    for (line, content) in (1..).zip(text.lines()) {
        let content = content.split('#').next().unwrap_or_default().trim();
        if content.is_empty() {
            continue;
        }
        let wrong = |why| Wrong { line: Some(line), why };
        let (segment, offer) = offer(content).map_err(wrong)?;
        if let Some((_, before)) = offers.insert(segment, (offer, line)) {
            let why = format!("segment {segment} is there already, in line {before}");
            return Err(wrong(why));
        }
    }
    if offers.is_empty() {
        return Err(Wrong { line: None, why: "it has no offers".into() });
    }
    Ok(offers.into_iter().map(|(segment, (offer, _))| (segment, offer)).collect())
}

fn offer(line: &str) -> Result<(u64, Offer), String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [segment, price, creative] = words[..] else {
        return Err(format!("`{line}` has {} words", words.len()));
    };
    let price = number("the price", price, u32::MAX)?;
    let creative = number("the creative's number", creative, u64::MAX)?;
    Ok((number("the segment's number", segment, u64::MAX)?, Offer { price, creative }))
}

fn number<T: FromStr + Display>(what: &str, word: &str, most: T) -> Result<T, String> {
    word.parse().map_err(|_| format!("{what} is `{word}`, and has to be 0 to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_segment() {
        let offers = parse("# segment price creative\n\n 7 1000\t5 # cheap\n8 2 3\n").unwrap();
        assert_eq!(offers.len(), 2);
        assert_eq!(offers[&7], Offer { price: 1000, creative: 5 });
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, line, why) in [
            ("", None, "no offers"),
            ("# nothing\n", None, "no offers"),
            ("7 1 2\n\n7 1 2", Some(3), "segment 7 is there already, in line 1"),
            ("7 1000", Some(1), "2 words"),
            ("7 1 2 3", Some(1), "4 words"),
            ("\n7 -1 5", Some(2), "the price is `-1`"),
            ("x 1 2", Some(1), "the segment's number is `x`"),
            ("7 5000000000 1", Some(1), "`5000000000`, and has to be 0 to 4294967295"),
            ("7 1 18446744073709551616", Some(1), "0 to 18446744073709551615"),
        ] {
            let wrong = parse(text).unwrap_err();
            assert!(wrong.line == line && wrong.why.contains(why), "{text:?}: {wrong:?}");
        }
    }
}
