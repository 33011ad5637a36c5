//! Reading a table key by key: what is wrong goes to the report, what was not asked for is
//! unknown.

use std::cell::RefCell;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::reader::diagnostics::Diagnostics;
use crate::reader::located::Located;
use crate::reader::suggest::nearest;
use crate::reader::value::{Read, wrong_type};

/// One table of the file.
pub(crate) struct Section<'a> {
    pub(crate) report: &'a Diagnostics,
    /// How messages name it: `[node]`, `service "web"`.
    pub(crate) place: String,
    pub(crate) span: Range<usize>,
    /// Where its file begins among all files; the parser counts from there.
    base: usize,
    /// `None` when it was left out.
    table: Option<&'a DeTable<'a>>,
    known: Vec<&'static str>,
    /// Keys that must be there and are not, with what to say of each; reported at the end, when
    /// every other key is known and a mistyped one can be told from one that is missing.
    missing: RefCell<Vec<(&'static str, String)>>,
}

impl<'a> Section<'a> {
    /// The whole of a file, which begins at `base`.
    pub(crate) fn file(
        report: &'a Diagnostics,
        base: usize,
        table: &'a DeTable<'a>,
    ) -> Section<'a> {
        let (place, span) = ("the file".into(), base..base);
        Section {
            report,
            place,
            span,
            base,
            table: Some(table),
            known: Vec::new(),
            missing: RefCell::default(),
        }
    }

    /// A file that says nothing: then every key has its default.
    pub(crate) fn absent(report: &'a Diagnostics) -> Section<'a> {
        let (place, span) = ("the file".into(), 0..0);
        Section {
            report,
            place,
            span,
            base: 0,
            table: None,
            known: Vec::new(),
            missing: RefCell::default(),
        }
    }

    /// A table of the same file.
    pub(crate) fn inside<'t>(&self, place: String, table: &Located<&'t DeTable<'t>>) -> Section<'t>
    where
        'a: 't,
    {
        let (report, span, base) = (self.report, table.span(), self.base);
        Section {
            report,
            place,
            span,
            base,
            table: Some(table),
            known: Vec::new(),
            missing: RefCell::default(),
        }
    }

    /// Where something was written, among all files.
    fn at<T>(&self, written: &Spanned<T>) -> Range<usize> {
        let span = written.span();
        span.start + self.base..span.end + self.base
    }

    /// The value of a key, which is known from now on.
    fn take(&mut self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.known.push(key);
        self.table?.get(key)
    }

    /// Reports `key = value in place` and what is wrong with it.
    fn complain(&self, key: &str, value: &Spanned<DeValue>, complaint: &str) {
        let written = self.report.excerpt(&self.at(value));
        let message = format!("{key} = {written} in {} {complaint}", self.place);
        self.report.error(self.at(value), message);
    }

    /// Is the value a table under its own `[header]`? (Those in braces and lists span them.)
    fn is_header(&self, value: &Spanned<DeValue>) -> bool {
        let written = self.report.excerpt(&self.at(value));
        match value.get_ref() {
            DeValue::Array(_) => written.starts_with("[["),
            _ => written.starts_with('['),
        }
    }

    /// A key that may be left out. `None` also when its value is wrong.
    pub(crate) fn optional<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&DeValue) -> Read<T>,
    ) -> Option<Located<T>> {
        let value = self.take(key)?;
        read(value.get_ref())
            .map(|read| Located::new(read, self.at(value)))
            .inspect_err(|complaint| self.complain(key, value, complaint))
            .ok()
    }

    /// A key with a default.
    pub(crate) fn or<T>(
        &mut self,
        key: &'static str,
        default: T,
        read: impl FnOnce(&DeValue) -> Read<T>,
    ) -> Located<T> {
        self.optional(key, read).unwrap_or(default.into())
    }

    /// A key that must be there; `example` is what to add when it is not.
    pub(crate) fn required<T>(
        &mut self,
        key: &'static str,
        example: &str,
        read: impl FnOnce(&DeValue) -> Read<T>,
    ) -> Option<Located<T>> {
        self.require(key, example);
        self.optional(key, read)
    }

    /// Reports a key that must not be here.
    pub(crate) fn refuse(&mut self, key: &'static str, message: &str) {
        if let Some(value) = self.take(key) {
            self.report.error(self.at(value), message);
        }
    }

    /// Whether a key is there, right or wrong.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    /// Reports a key that is not there, unless another one turns out to be a mistyped it.
    pub(crate) fn require(&self, key: &'static str, example: &str) {
        if self.table.is_none_or(|table| !table.contains_key(key)) {
            let message = format!("{} has no {key}: add {example}", self.place);
            self.missing.borrow_mut().push((key, message));
        }
    }

    /// A list. Elements that are wrong are reported and left out; `None` when the key is absent or
    /// no list.
    pub(crate) fn list<T>(
        &mut self,
        key: &'static str,
        example: &str,
        read: impl Fn(&'a DeValue<'a>) -> Read<T>,
    ) -> Option<Located<Vec<Located<T>>>> {
        let value = self.take(key)?;
        let Some(items) = value.get_ref().as_array() else {
            let complaint = wrong_type(value.get_ref(), &format!("write {example}"));
            match self.is_header(value) {
                true => self.report.error(
                    self.at(value),
                    format!(
                        "{key} of {} is one table: write its header in double brackets, once for \
                         each",
                        self.place
                    ),
                ),
                false => self.complain(key, value, &complaint),
            }
            return None;
        };
        let read = |item: &'a Spanned<DeValue<'a>>| match read(item.get_ref()) {
            Ok(read) => Some(Located::new(read, self.at(item))),
            Err(complaint) => {
                let written = self.report.excerpt(&self.at(item));
                let message = format!("{written} in {key} of {} {complaint}", self.place);
                self.report.error(self.at(item), message);
                None
            }
        };
        Some(Located::new(items.iter().filter_map(read).collect(), self.at(value)))
    }

    /// A list that must be there with something in it.
    pub(crate) fn required_list<T>(
        &mut self,
        key: &'static str,
        example: &str,
        read: impl Fn(&'a DeValue<'a>) -> Read<T>,
    ) -> Option<Located<Vec<Located<T>>>> {
        self.require(key, example);
        let value = self.table.and_then(|table| table.get(key));
        if let Some(value) = value
            && value.get_ref().as_array().is_some_and(|items| items.is_empty())
        {
            self.complain(key, value, &format!("is empty: write {example}"));
        }
        self.list(key, example, read)
    }

    /// A table inside this one, when it is there.
    pub(crate) fn table(&mut self, key: &'static str, place: String) -> Option<Section<'a>> {
        let value = self.take(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Some(self.inside(place, &Located::new(table, self.at(value)))),
            DeValue::Array(_) if self.is_header(value) => {
                let message = format!("[[{key}]] is a list: write [{key}], once");
                self.report.error(self.at(value), message);
                None
            }
            other => {
                let remedy = format!("write a table, {key} = {{ ... }}");
                self.complain(key, value, &wrong_type(other, &remedy));
                None
            }
        }
    }

    /// The same where the value is a table; the key may have another kind of value, too.
    pub(crate) fn table_if(&mut self, key: &'static str, place: String) -> Option<Section<'a>> {
        self.table?.get(key)?.get_ref().as_table()?;
        self.table(key, place)
    }

    /// A table that may be left out: then every key has its default.
    pub(crate) fn table_or_empty(&mut self, key: &'static str, place: String) -> Section<'a> {
        let absent = Section {
            report: self.report,
            place: place.clone(),
            span: 0..0,
            base: self.base,
            table: None,
            known: Vec::new(),
            missing: RefCell::default(),
        };
        self.table(key, place).unwrap_or(absent)
    }

    /// Reports every key that nobody asked for.
    pub(crate) fn finish(self) {
        let Some(table) = self.table else { return };
        // What is there already is hardly what was meant.
        let absent: Vec<&str> =
            self.known.iter().copied().filter(|known| !table.contains_key(*known)).collect();
        for (key, _) in table {
            let name: &str = key.get_ref();
            if self.known.contains(&name) {
                continue;
            }
            let near = nearest(name, &absent).or_else(|| nearest(name, &self.known));
            self.missing.borrow_mut().retain(|(missing, _)| Some(*missing) != near);
            let remedy = match near {
                Some(known) => format!("did you mean {known:?}?"),
                None => format!("remove it; known here: {}", self.known.join(", ")),
            };
            let message = format!("unknown key {name:?} in {}: {remedy}", self.place);
            let span = key.span();
            self.report.error(span.start + self.base..span.end + self.base, message);
        }
    }
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        for (_, message) in self.missing.take() {
            self.report.error(self.span.clone(), message);
        }
    }
}
