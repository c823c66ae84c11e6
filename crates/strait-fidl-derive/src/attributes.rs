//! The attribute `#[fidl(...)]`.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Attribute, Error, Expr, Ident, LitInt, Result, Token, Type, parenthesized};

/// Whether values that a type does not know are errors.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Strictness {
    Strict,
    Flexible,
}

/// The contents of an attribute on a type, a variant or a field.
#[derive(Default)]
pub(crate) struct Attributes {
    pub(crate) table: Option<Span>,
    pub(crate) union: Option<Span>,
    pub(crate) bits: Option<Span>,
    pub(crate) encode_only: Option<Span>,
    pub(crate) unknown: Option<Span>,
    pub(crate) strictness: Option<(Strictness, Span)>,
    pub(crate) mask: Option<Expr>,
    pub(crate) ordinal: Option<(u64, Span)>,
    pub(crate) max: Option<Max>,
}

/// The limits of a field.
pub(crate) struct Max {
    /// The place of the word `max`.
    pub(crate) span: Span,
    /// The limits of nested vectors and strings, the outermost first; `None` for no limit.
    limits: Vec<Option<Expr>>,
}

enum Item {
    Word(Ident),
    Ordinal(LitInt),
    Mask(Expr),
    Max(Ident, Vec<Option<Expr>>),
}

fn limit(input: ParseStream<'_>) -> Result<Option<Expr>> {
    if input.peek(Token![_]) {
        input.parse::<Token![_]>()?;
        return Ok(None);
    }
    input.parse().map(Some)
}

impl Parse for Item {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        if input.peek(LitInt) {
            return input.parse().map(Self::Ordinal);
        }
        let word = input.call(Ident::parse_any)?;
        if word == "max" {
            if input.peek(Token![=]) {
                input.parse::<Token![=]>()?;
                return Ok(Self::Max(word, vec![Some(input.parse()?)]));
            }
            let list;
            parenthesized!(list in input);
            let limits = Punctuated::<_, Token![,]>::parse_terminated_with(&list, limit)?;
            return Ok(Self::Max(word, limits.into_iter().collect()));
        }
        if word == "mask" {
            input.parse::<Token![=]>()?;
            return input.parse().map(Self::Mask);
        }
        Ok(Self::Word(word))
    }
}

/// Stores `value` in `place`, if no earlier word of the attributes has filled the place.
///
/// # Errors
/// The text `twice`, at `span`, if the place was filled before.
fn once<T>(place: &mut Option<T>, value: T, span: Span, twice: &str) -> Result<()> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(Error::new(span, twice)),
    }
}

/// Where an attribute stands, with the words that it may have there.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Place {
    Type,
    Variant,
    Field,
}

impl Attributes {
    /// Reads the attributes of a type, a variant or a field.
    pub(crate) fn read(attributes: &[Attribute], place: Place) -> Result<Self> {
        let mut all = Self::default();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("fidl")) {
            for item in attribute.parse_args_with(Punctuated::<Item, Token![,]>::parse_terminated)? {
                all.add(item, place)?;
            }
        }
        Ok(all)
    }

    fn add(&mut self, item: Item, place: Place) -> Result<()> {
        match item {
            Item::Ordinal(number) if place != Place::Type => {
                let ordinal = (number.base10_parse()?, number.span());
                once(&mut self.ordinal, ordinal, number.span(), "a field or a variant has one ordinal")?;
            }
            Item::Ordinal(number) => return Err(Error::new(number.span(), "only a field or a variant has an ordinal")),
            Item::Mask(mask) if place == Place::Type => {
                let span = mask.span();
                once(&mut self.mask, mask, span, "a type of bits has one mask")?;
            }
            Item::Mask(mask) => return Err(Error::new(mask.span(), "only a type of bits has a mask")),
            Item::Max(word, limits) if place != Place::Type => {
                if limits.is_empty() || self.max.is_some() {
                    return Err(Error::new(word.span(), "a field or a variant has one list of limits: max(10, 20)"));
                }
                self.max = Some(Max { span: word.span(), limits });
            }
            Item::Max(word, _) => return Err(Error::new(word.span(), "only a field or a variant has a limit")),
            Item::Word(word) => self.add_word(&word, place)?,
        }
        Ok(())
    }

    fn add_word(&mut self, word: &Ident, place: Place) -> Result<()> {
        let span = word.span();
        let found = match (word.to_string().as_str(), place) {
            ("table", Place::Type) => &mut self.table,
            ("union", Place::Type) => &mut self.union,
            ("bits", Place::Type) => &mut self.bits,
            ("encode_only", Place::Type) => &mut self.encode_only,
            ("unknown", Place::Variant) => &mut self.unknown,
            ("strict", Place::Type) => return self.set_strictness(Strictness::Strict, span),
            ("flexible", Place::Type) => return self.set_strictness(Strictness::Flexible, span),
            _ => {
                let known = match place {
                    Place::Type => "table, union, bits, strict, flexible, mask = ..., encode_only",
                    Place::Variant => "an ordinal, max = ..., max(..., ...), unknown",
                    Place::Field => "an ordinal, max = ..., max(..., ...)",
                };
                return Err(Error::new(word.span(), format!("unknown word; here can be: {known}")));
            }
        };
        once(found, span, span, "this word is given twice: remove one")
    }

    fn set_strictness(&mut self, strictness: Strictness, span: Span) -> Result<()> {
        once(&mut self.strictness, (strictness, span), span, "give one of `strict` and `flexible`, once")
    }

    /// Returns the strictness, which unions, enums and bits must name.
    pub(crate) fn strictness(&self, of: &Ident, what: &str) -> Result<Strictness> {
        let missing = || {
            let text = format!("{what} is strict or flexible: #[fidl({what}, strict)] or #[fidl({what}, flexible)]");
            let text = text.replace("(enum, ", "(");
            Error::new(of.span(), text)
        };
        self.strictness.map(|(strictness, _)| strictness).ok_or_else(missing)
    }

    /// Returns the limits as an expression of type `&'static [u32]`.
    pub(crate) fn limits(&self) -> TokenStream {
        let limits = self.max.iter().flat_map(|max| &max.limits).map(|limit| match limit {
            Some(limit) => quote!(#limit),
            None => quote!(::core::primitive::u32::MAX),
        });
        quote!(const { &[#(#limits),*] })
    }

    /// Returns a check, while the program is compiled, that a field of this type takes the limits of the attribute;
    /// `None` if the attribute has no limits.
    pub(crate) fn check_limits(&self, ty: &Type) -> Option<TokenStream> {
        let Max { span, limits } = self.max.as_ref()?;
        let count = limits.len();
        Some(quote_spanned!(*span=> ::strait_fidl::support::check_limits::<#ty>(#count);))
    }

    /// Refuses limits where nothing takes them.
    pub(crate) fn refuse_limits(&self) -> Result<()> {
        match &self.max {
            Some(Max { span, .. }) => Err(Error::new(*span, "only a string or a vector has a limit")),
            None => Ok(()),
        }
    }
}
