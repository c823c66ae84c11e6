//! The derive macro of the crate `strait-fidl`, which exports it and describes its attributes.

mod attributes;
mod generate;
mod kinds;
#[cfg(test)]
mod tests;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Derives the encoding of a FIDL type.
///
/// # Structs
/// The fields are encoded in their order. A struct has the layout of a C struct; if its memory has that layout too
/// (`#[repr(C)]`, no padding, only numbers), it is copied at once, and vectors of it are not copied at all.
/// ```ignore
/// # use strait_fidl::Fidl;
/// #[derive(Fidl)]
/// struct Point {
///     x: i32,
///     y: i32,
/// }
///
/// #[derive(Fidl)]
/// struct Path<'a> {
///     #[fidl(max = 32)]
///     name: &'a str,
///     points: Vec<Point>,
///     /// A vector of at most 8 vectors of at most 100 bytes; `_` stands for no limit.
///     #[fidl(max(8, 100))]
///     tags: Vec<Vec<u8>>,
///     /// An optional struct, `box<Point>`.
///     center: Option<Point>,
/// }
/// ```
/// A struct with fields that can be encoded and not decoded (`&[u32]`, for example) has the attribute
/// `#[fidl(encode_only)]`.
///
/// # Tables
/// Each field is an `Option` and has an ordinal, from 1 to 64.
/// ```ignore
/// # use strait_fidl::Fidl;
/// #[derive(Default, Fidl)]
/// #[fidl(table)]
/// struct Settings {
///     #[fidl(1)]
///     volume: Option<u32>,
///     #[fidl(3, max = 64)]
///     voice: Option<String>,
/// }
/// ```
///
/// # Unions
/// Each variant has an ordinal and one value. A flexible union has a variant for unknown ordinals, whose value is
/// dropped; it cannot be encoded again.
/// ```ignore
/// # use strait_fidl::Fidl;
/// #[derive(Fidl)]
/// #[fidl(union, flexible)]
/// enum Event {
///     #[fidl(1)]
///     Key(u32),
///     #[fidl(2)]
///     Text(#[fidl(max = 100)] String),
///     #[fidl(unknown)]
///     Unknown(u64),
/// }
///
/// #[derive(Fidl)]
/// #[fidl(union, strict)]
/// enum Answer {
///     #[fidl(1)]
///     Yes(bool),
///     #[fidl(2)]
///     Why(String),
/// }
/// ```
///
/// # Enums and bits
/// The type of the numbers is that of `#[repr]`, or of the field.
/// ```ignore
/// # use strait_fidl::Fidl;
/// #[derive(Fidl)]
/// #[fidl(strict)]
/// #[repr(u8)]
/// enum Color {
///     Red = 1,
///     Blue,
/// }
///
/// #[derive(Fidl)]
/// #[fidl(flexible)]
/// #[repr(u32)]
/// enum Reason {
///     Timeout = 1,
///     #[fidl(unknown)]
///     Unknown(u32),
/// }
///
/// /// Works with `bitflags!` as well: `bitflags! { impl Access: u16 { ... } }`, and `mask = Access::all().bits()`.
/// #[derive(Fidl)]
/// #[fidl(bits, strict, mask = 0b11)]
/// struct Access(u16);
/// ```
#[proc_macro_derive(Fidl, attributes(fidl))]
pub fn derive(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    kinds::expand(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}
