//! The kinds of types: structs, tables, unions, enums and bits.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote};
use syn::spanned::Spanned;
use syn::{Data, DataEnum, DataStruct, DeriveInput, Error, Expr, Fields, Ident, Index, Member, Result, Type, Variant};

use crate::attributes::{Attributes, Place, Strictness};
use crate::generate::{Parts, implementations};

/// The greatest ordinal of a table.
const MAX_ORDINAL: u64 = 64;

/// The types of the numbers of enums.
const NUMBERS: [&str; 8] = ["u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64"];

/// Returns the implementations for a type.
pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let attributes = Attributes::read(&input.attrs, Place::Type)?;
    let kinds = [attributes.table, attributes.union, attributes.bits];
    if let [_, second, ..] = kinds.into_iter().flatten().collect::<Vec<_>>()[..] {
        return Err(Error::new(second, "a type is of one kind: a table, a union or bits"));
    }
    if let (Some((_, span)), None, None, Data::Struct(_)) =
        (attributes.strictness, attributes.union, attributes.bits, &input.data)
    {
        return Err(Error::new(span, "only unions, enums and bits are strict or flexible"));
    }
    if let (Some(mask), None) = (&attributes.mask, attributes.bits) {
        return Err(Error::new(mask.span(), "only a type of bits has a mask"));
    }
    let mut parts = match &input.data {
        Data::Struct(data) if attributes.table.is_some() => table(data)?,
        Data::Struct(data) if attributes.bits.is_some() => bits(&input.ident, data, &attributes)?,
        Data::Struct(_) if attributes.union.is_some() => {
            return Err(Error::new(input.ident.span(), "a union is an enum with one variant for each field"));
        }
        Data::Struct(data) => structure(data)?,
        Data::Enum(_) if attributes.table.is_some() || attributes.bits.is_some() => {
            return Err(Error::new(input.ident.span(), "tables and bits are structs"));
        }
        Data::Enum(data) if attributes.union.is_some() => union(&input.ident, data, &attributes)?,
        Data::Enum(data) => enumeration(input, data, &attributes)?,
        Data::Union(_) => {
            return Err(Error::new(
                input.ident.span(),
                "a union of FIDL is an enum with the attribute #[fidl(union, ...)]",
            ));
        }
    };
    parts.encode_only = attributes.encode_only.is_some();
    Ok(implementations(input, parts))
}

/// A field of a struct.
struct Field<'a> {
    member: Member,
    /// A variable for its value.
    variable: Ident,
    name: String,
    ty: &'a Type,
    attributes: Attributes,
}

fn fields(fields: &Fields) -> Result<Vec<Field<'_>>> {
    let field = |(index, field): (usize, &'_ syn::Field)| {
        let member = match &field.ident {
            Some(name) => Member::Named(name.clone()),
            None => Member::Unnamed(Index { index: index as u32, span: field.span() }),
        };
        let name = field.ident.as_ref().map_or_else(|| index.to_string(), |name| name.to_string());
        Attributes::read(&field.attrs, Place::Field).map(|attributes| (member, name, attributes))
    };
    let mut all = Vec::new();
    for (index, part) in fields.iter().enumerate() {
        let (member, name, attributes) = field((index, part))?;
        let name = name.trim_start_matches("r#").to_owned();
        all.push(Field { member, variable: format_ident!("__field_{index}"), name, ty: &part.ty, attributes });
    }
    Ok(all)
}

fn structure(data: &DataStruct) -> Result<Parts> {
    let fields = fields(&data.fields)?;
    if let Some((_, span)) = fields.iter().find_map(|field| field.attributes.ordinal) {
        return Err(Error::new(span, "only fields of tables and unions have an ordinal; is this a #[fidl(table)]?"));
    }
    let described = fields.iter().map(|Field { member, ty, .. }| {
        quote!(::strait_fidl::support::Field::new::<#ty>(::core::mem::offset_of!(Self, #member)))
    });
    let place = |index: usize| quote!(const { ::strait_fidl::support::offset(Self::__FIDL, #index) });
    let encoded = fields.iter().enumerate().map(|(index, Field { member, name, attributes, .. })| {
        let (at, limits) = (place(index), attributes.limits());
        quote! {
            ::strait_fidl::support::encode_field(&self.#member, __out, __at + #at, __context.with(#limits), #name)?;
        }
    });
    let decoded = fields.iter().enumerate().map(|(index, Field { variable, name, ty, attributes, .. })| {
        let (at, limits) = (place(index), attributes.limits());
        let next =
            if index + 1 < fields.len() { place(index + 1) } else { quote!(<Self as ::strait_fidl::Layout>::SIZE) };
        quote! {
            let #variable: #ty =
                ::strait_fidl::support::decode_field(__input, __at + #at, __context.with(#limits), #name)?;
            ::strait_fidl::support::padding(
                __input,
                __at + #at + <#ty as ::strait_fidl::Layout>::SIZE,
                __at + #next,
            )?;
        }
    });
    let empty = fields.is_empty().then(|| quote!(::strait_fidl::support::empty(__input, __at)?;));
    let made = fields.iter().map(|Field { member, variable, .. }| quote!(#member: #variable));
    let checks = fields.iter().filter_map(|field| field.attributes.check_limits(field.ty)).collect();
    Ok(Parts {
        checks,
        constants: quote!(const __FIDL: &'static [::strait_fidl::support::Field] = &[#(#described),*];),
        layout: quote! {
            const SIZE: usize = ::strait_fidl::support::size(Self::__FIDL);
            const ALIGN: usize = ::strait_fidl::support::align(Self::__FIDL);
            const COPYABLE: bool = ::strait_fidl::support::copyable(Self::__FIDL, ::core::mem::size_of::<Self>());
            const ANY_BITS: bool = ::strait_fidl::support::any_bits(Self::__FIDL);
        },
        optional: Some(quote! {
            const BOXED: bool = true;
            const OPTION_SIZE: usize = 8;
            const OPTION_ALIGN: usize = 8;
        }),
        encode: quote! {
            if ::strait_fidl::support::encode_copyable(self, __out, __at) {
                return ::core::result::Result::Ok(());
            }
            #(#encoded)*
            ::core::result::Result::Ok(())
        },
        decode: quote! {
            if let ::core::option::Option::Some(value) = ::strait_fidl::support::decode_any(__input, __at)? {
                return ::core::result::Result::Ok(value);
            }
            #empty
            #(#decoded)*
            ::core::result::Result::Ok(Self { #(#made),* })
        },
        encode_only: false,
    })
}

/// Checks that each ordinal is there once, from 1 to the greatest one.
fn check_ordinals(ordinals: impl Iterator<Item = (Option<(u64, Span)>, Span)>, greatest: u64) -> Result<()> {
    let mut seen = Vec::new();
    for (ordinal, span) in ordinals {
        let Some((number, span)) = ordinal else {
            return Err(Error::new(span, "an ordinal is missing: #[fidl(1)]"));
        };
        if number == 0 || number > greatest {
            return Err(Error::new(span, format!("an ordinal is a number from 1 to {greatest}")));
        }
        if seen.contains(&number) {
            return Err(Error::new(span, "this ordinal is there twice"));
        }
        seen.push(number);
    }
    Ok(())
}

fn is_option(ty: &Type) -> bool {
    matches!(ty, Type::Path(path) if path.path.segments.last().is_some_and(|last| last.ident == "Option"))
}

fn table(data: &DataStruct) -> Result<Parts> {
    let mut fields = fields(&data.fields)?;
    check_ordinals(fields.iter().map(|field| (field.attributes.ordinal, field.ty.span())), MAX_ORDINAL)?;
    if let Some(field) = fields.iter().find(|field| !is_option(field.ty)) {
        return Err(Error::new(field.ty.span(), "a field of a table is an Option"));
    }
    fields.sort_by_key(|field| field.attributes.ordinal.map(|(ordinal, _)| ordinal));
    let ordinal = |field: &Field<'_>| field.attributes.ordinal.map_or(0, |(ordinal, _)| ordinal);
    let counted = fields.iter().map(|field| {
        let (member, ordinal) = (&field.member, ordinal(field));
        quote! {
            if self.#member.is_some() {
                __max = #ordinal;
            }
        }
    });
    let encoded = fields.iter().map(|field| {
        let Field { member, name, attributes, .. } = field;
        let (ordinal, limits) = (ordinal(field), attributes.limits());
        quote! {
            if let ::core::option::Option::Some(value) = &self.#member {
                let context = __context.with(#limits);
                ::strait_fidl::support::encode_member(value, __out, __body, #ordinal, context, #name)?;
            }
        }
    });
    let variables =
        fields.iter().map(|Field { variable, ty, .. }| quote!(let mut #variable: #ty = ::core::option::Option::None;));
    let decoded = fields.iter().map(|field| {
        let Field { variable, name, attributes, .. } = field;
        let (ordinal, limits) = (ordinal(field), attributes.limits());
        quote! {
            #ordinal => {
                let context = __members.context.with(#limits);
                let value = ::strait_fidl::support::decode_member(__envelope, __input, context, #name)?;
                #variable = ::core::option::Option::Some(value);
            }
        }
    });
    let made = fields.iter().map(|Field { member, variable, .. }| quote!(#member: #variable));
    let checks = fields.iter().filter_map(|field| field.attributes.check_limits(field.ty)).collect();
    Ok(Parts {
        checks,
        constants: TokenStream::new(),
        layout: quote! {
            const SIZE: usize = 16;
            const ALIGN: usize = 8;
        },
        optional: None,
        encode: quote! {
            let mut __max: u64 = 0;
            #(#counted)*
            let (__body, __context) = ::strait_fidl::support::encode_table(__out, __at, __context, __max)?;
            #(#encoded)*
            ::core::result::Result::Ok(())
        },
        decode: quote! {
            #(#variables)*
            let mut __members = ::strait_fidl::support::Members::read(__input, __at, __context)?;
            while let ::core::option::Option::Some((__ordinal, __envelope)) = __members.next(__input)? {
                match __ordinal {
                    #(#decoded)*
                    _ => __envelope.skip(__input, __members.context)?,
                }
            }
            ::core::result::Result::Ok(Self { #(#made),* })
        },
        encode_only: false,
    })
}

/// Returns the variant for unknown values, if there is one, after checking that there is if there must be.
fn unknown<'a>(
    name: &Ident,
    variants: &'a [(&Variant, Attributes)],
    strictness: Strictness,
    number: &str,
) -> Result<Option<&'a Ident>> {
    let mut unknown = variants.iter().filter(|(_, attributes)| attributes.unknown.is_some());
    match (unknown.next(), strictness) {
        (None, Strictness::Strict) => Ok(None),
        (None, Strictness::Flexible) => {
            let text = format!("a flexible type has a variant for unknown values: #[fidl(unknown)] Unknown({number})");
            Err(Error::new(name.span(), text))
        }
        (Some((variant, _)), Strictness::Strict) => {
            Err(Error::new(variant.span(), "a strict type has no variant for unknown values"))
        }
        (Some((variant, attributes)), Strictness::Flexible) => {
            if let Some((other, _)) = unknown.next() {
                return Err(Error::new(other.span(), "there is one variant for unknown values already"));
            }
            if let Some((_, span)) = attributes.ordinal {
                return Err(Error::new(span, "the variant for unknown values has no ordinal"));
            }
            match &variant.fields {
                Fields::Unnamed(fields) if fields.unnamed.len() == 1 => Ok(Some(&variant.ident)),
                _ => Err(Error::new(
                    variant.span(),
                    format!("unknown values are kept as a number: {}({number})", variant.ident),
                )),
            }
        }
    }
}

fn variants(data: &DataEnum) -> Result<Vec<(&Variant, Attributes)>> {
    data.variants
        .iter()
        .map(|variant| Attributes::read(&variant.attrs, Place::Variant).map(|attributes| (variant, attributes)))
        .collect()
}

fn union(name: &Ident, data: &DataEnum, attributes: &Attributes) -> Result<Parts> {
    let strictness = attributes.strictness(name, "union")?;
    let variants = variants(data)?;
    let unknown = unknown(name, &variants, strictness, "u64")?.cloned();
    let (mut known, mut checks) = (Vec::new(), Vec::new());
    for (variant, mut attributes) in variants {
        if attributes.unknown.is_some() {
            attributes.refuse_limits()?;
            continue;
        }
        match &variant.fields {
            Fields::Unnamed(fields) if fields.unnamed.len() == 1 => {
                let inner = Attributes::read(&fields.unnamed[0].attrs, Place::Field)?;
                if let Some((_, span)) = inner.ordinal {
                    return Err(Error::new(span, "the ordinal stands before the variant"));
                }
                if let (Some(_), Some(max)) = (&attributes.max, &inner.max) {
                    return Err(Error::new(max.span, "the variant has limits already"));
                }
                attributes.max = inner.max.or(attributes.max);
                checks.extend(attributes.check_limits(&fields.unnamed[0].ty));
            }
            _ => return Err(Error::new(variant.span(), "a variant of a union has one value: Name(Type)")),
        }
        known.push((&variant.ident, attributes));
    }
    check_ordinals(known.iter().map(|(name, attributes)| (attributes.ordinal, name.span())), u64::MAX)?;
    let ordinals: Vec<u64> =
        known.iter().filter_map(|(_, attributes)| attributes.ordinal.map(|(ordinal, _)| ordinal)).collect();
    let encoded = known.iter().zip(&ordinals).map(|((variant, attributes), ordinal)| {
        let (limits, text) = (attributes.limits(), variant.to_string());
        quote! {
            Self::#variant(value) => {
                let context = __context.with(#limits);
                ::strait_fidl::support::encode_union(value, __out, __at, #ordinal, context, #text)
            }
        }
    });
    let decoded = known.iter().zip(&ordinals).map(|((variant, attributes), ordinal)| {
        let (limits, text) = (attributes.limits(), variant.to_string());
        quote! {
            #ordinal => {
                let context = __context.with(#limits);
                let value = ::strait_fidl::support::decode_member(__envelope, __input, context, #text)?;
                ::core::result::Result::Ok(Self::#variant(value))
            }
        }
    });
    let not_encoded = unknown.as_ref().map(|unknown| {
        quote!(Self::#unknown(ordinal) => ::core::result::Result::Err(::strait_fidl::support::unknown(__out, __at, *ordinal)),)
    });
    let (is_known, otherwise) = match &unknown {
        Some(unknown) => (
            quote!(true),
            quote! {
                __envelope.skip(__input, __context)?;
                ::core::result::Result::Ok(Self::#unknown(__ordinal))
            },
        ),
        None => (
            quote!(::core::matches!(__ordinal, #(#ordinals)|*)),
            quote! {
                let code = ::strait_fidl::Code::StrictUnionUnknownField;
                ::core::result::Result::Err(::strait_fidl::support::error(code, __at))
            },
        ),
    };
    Ok(Parts {
        checks,
        constants: TokenStream::new(),
        layout: quote! {
            const SIZE: usize = 16;
            const ALIGN: usize = 8;
        },
        optional: Some(quote! {
            const BOXED: bool = false;
            const OPTION_SIZE: usize = 16;
            const OPTION_ALIGN: usize = 8;
        }),
        encode: quote! {
            match self {
                #(#encoded)*
                #not_encoded
            }
        },
        decode: quote! {
            let (__ordinal, __envelope) =
                ::strait_fidl::support::read_union(__input, __at, |__ordinal: u64| #is_known)?;
            match __ordinal {
                #(#decoded)*
                _ => { #otherwise }
            }
        },
        encode_only: false,
    })
}

/// Returns the type in `#[repr(...)]`.
fn repr(input: &DeriveInput) -> Result<Ident> {
    let mut number = None;
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("repr")) {
        attribute.parse_nested_meta(|meta| {
            if let Some(word) = meta.path.get_ident()
                && NUMBERS.iter().any(|number| word == number)
            {
                number = Some(word.clone());
            }
            Ok(())
        })?;
    }
    number.ok_or_else(|| {
        let text = "an enum has the type of its numbers: #[repr(u32)], or another of u8 to u64 and i8 to i64. A union \
                    has the attribute #[fidl(union, ...)]";
        Error::new(input.ident.span(), text)
    })
}

fn enumeration(input: &DeriveInput, data: &DataEnum, attributes: &Attributes) -> Result<Parts> {
    let number = repr(input)?;
    let strictness = attributes.strictness(&input.ident, "enum")?;
    let variants = variants(data)?;
    let unknown = unknown(&input.ident, &variants, strictness, &number.to_string())?.cloned();
    let (mut constants, mut known) = (Vec::new(), Vec::new());
    let mut previous: Option<Ident> = None;
    for (variant, attributes) in &variants {
        attributes.refuse_limits()?;
        if let Some((_, span)) = attributes.ordinal {
            return Err(Error::new(span, "the number of a variant stands behind it: Name = 1"));
        }
        if attributes.unknown.is_some() {
            continue;
        }
        if !matches!(variant.fields, Fields::Unit) {
            return Err(Error::new(
                variant.span(),
                "a variant of an enum has no value; is this a #[fidl(union, ...)]?",
            ));
        }
        let constant = format_ident!("__{}", variant.ident);
        let value: Expr = match (&variant.discriminant, &previous) {
            (Some((_, value)), _) => value.clone(),
            (None, Some(previous)) => syn::parse_quote!(Self::#previous + 1),
            (None, None) => syn::parse_quote!(0),
        };
        constants.push(quote!(const #constant: #number = #value;));
        known.push((&variant.ident, constant.clone()));
        previous = Some(constant);
    }
    let encoded = known.iter().map(|(variant, constant)| quote!(Self::#variant => Self::#constant,));
    let decoded = known.iter().map(|(variant, constant)| {
        quote! {
            if value == Self::#constant {
                return ::core::result::Result::Ok(Self::#variant);
            }
        }
    });
    let kept = unknown.as_ref().map(|unknown| quote!(Self::#unknown(value) => *value,));
    let otherwise = match &unknown {
        Some(unknown) => quote!(::core::result::Result::Ok(Self::#unknown(value))),
        None => quote! {
            let code = ::strait_fidl::Code::StrictEnumUnknownValue;
            ::core::result::Result::Err(::strait_fidl::support::error(code, __at))
        },
    };
    let copyable = match unknown {
        Some(_) => quote!(false),
        None => quote!({
            <#number as ::strait_fidl::Layout>::COPYABLE
                && ::core::mem::size_of::<Self>() == ::core::mem::size_of::<#number>()
        }),
    };
    Ok(Parts {
        checks: Vec::new(),
        constants: quote!(#(#constants)*),
        layout: quote! {
            const SIZE: usize = <#number as ::strait_fidl::Layout>::SIZE;
            const ALIGN: usize = <#number as ::strait_fidl::Layout>::ALIGN;
            const COPYABLE: bool = #copyable;
        },
        optional: None,
        encode: quote! {
            let value: #number = match self {
                #(#encoded)*
                #kept
            };
            ::strait_fidl::support::put(__out, __at, &value.to_le_bytes());
            ::core::result::Result::Ok(())
        },
        decode: quote! {
            let value = <#number as ::strait_fidl::Decode<'_>>::decode(__input, __at, __context)?;
            #(#decoded)*
            #otherwise
        },
        encode_only: false,
    })
}

fn bits(name: &Ident, data: &DataStruct, attributes: &Attributes) -> Result<Parts> {
    let strictness = attributes.strictness(name, "bits")?;
    let fields = fields(&data.fields)?;
    let [Field { member, ty, attributes: inner, .. }] = &fields[..] else {
        return Err(Error::new(name.span(), "bits are a struct of one number: struct Flags(u32)"));
    };
    inner.refuse_limits()?;
    if let Some((_, span)) = inner.ordinal {
        return Err(Error::new(span, "the number of bits has no ordinal"));
    }
    let number = quote!(#ty).to_string();
    if !NUMBERS[..4].contains(&number.as_str()) {
        return Err(Error::new(ty.span(), "the type of bits is u8, u16, u32 or u64"));
    }
    let checked = match (strictness, &attributes.mask) {
        (Strictness::Flexible, _) => None,
        (Strictness::Strict, None) => {
            return Err(Error::new(name.span(), "strict bits name the bits that they know: mask = 0b11"));
        }
        (Strictness::Strict, Some(mask)) => Some(quote! {
            const MASK: u64 = (#mask) as u64;
            if u64::from(value) & !MASK != 0 {
                let code = ::strait_fidl::Code::StrictBitsUnknownBit;
                return ::core::result::Result::Err(::strait_fidl::support::error(code, __at));
            }
        }),
    };
    let any_bits = strictness == Strictness::Flexible;
    let unknown = checked.as_ref().map(|checked| quote!(let value = self.#member; #checked));
    Ok(Parts {
        checks: Vec::new(),
        constants: quote! {
            const __FIDL: &'static [::strait_fidl::support::Field] =
                &[::strait_fidl::support::Field::new::<#ty>(::core::mem::offset_of!(Self, #member))];
        },
        layout: quote! {
            const SIZE: usize = <#ty as ::strait_fidl::Layout>::SIZE;
            const ALIGN: usize = <#ty as ::strait_fidl::Layout>::ALIGN;
            const COPYABLE: bool = #any_bits
                && ::strait_fidl::support::copyable(Self::__FIDL, ::core::mem::size_of::<Self>());
            const ANY_BITS: bool = #any_bits;
        },
        optional: None,
        encode: quote! {
            #unknown
            ::strait_fidl::support::put(__out, __at, &self.#member.to_le_bytes());
            ::core::result::Result::Ok(())
        },
        decode: quote! {
            let value = <#ty as ::strait_fidl::Decode<'_>>::decode(__input, __at, __context)?;
            #checked
            ::core::result::Result::Ok(Self { #member: value })
        },
        encode_only: false,
    })
}
