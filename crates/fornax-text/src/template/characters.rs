//! What Python knows of a character: its kind and its other cases, where Rust's answer differs.
//! Unicode's own tables are of the standard library and of `unicode-general-category`; here stands
//! what is in neither (UnicodeData.txt, CaseFolding.txt, SpecialCasing.txt). Knows no templates.

use unicode_general_category::{GeneralCategory as Category, get_general_category};

/// `str.isspace`: beside Unicode white space, the four separators of ASCII.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\x1C'..='\x1F')
}

/// `str.isalpha`: letters, without the marks and numbers that Rust counts among them.
pub(super) fn is_letter(character: char) -> bool {
    use Category as C;
    matches!(
        get_general_category(character),
        C::UppercaseLetter
            | C::LowercaseLetter
            | C::TitlecaseLetter
            | C::ModifierLetter
            | C::OtherLetter
    )
}

/// `str.isdecimal`.
pub(super) fn is_decimal(character: char) -> bool {
    get_general_category(character) == Category::DecimalNumber
}

/// `str.isdigit`: decimals, and digits that are raised, lowered or in circles.
pub(super) fn is_digit(character: char) -> bool {
    is_decimal(character)
        || matches!(
            character,
            '\u{B2}'..='\u{B3}' | '\u{B9}' | '\u{1369}'..='\u{1371}' | '\u{19DA}' | '\u{2070}'
            | '\u{2074}'..='\u{2079}' | '\u{2080}'..='\u{2089}' | '\u{2460}'..='\u{2468}'
            | '\u{2474}'..='\u{247C}' | '\u{2488}'..='\u{2490}' | '\u{24EA}'
            | '\u{24F5}'..='\u{24FD}' | '\u{24FF}' | '\u{2776}'..='\u{277E}'
            | '\u{2780}'..='\u{2788}' | '\u{278A}'..='\u{2792}' | '\u{10A40}'..='\u{10A43}'
            | '\u{10E60}'..='\u{10E68}' | '\u{11052}'..='\u{1105A}' | '\u{1F100}'..='\u{1F10A}'
        )
}

/// Letters that mean a number, mostly of Chinese.
const LETTERS_FOR_NUMBERS: &str = "㐅㒃㠪㭍一七万三九二五亖亿什仟仨伍佰億兆兩八六十千卄卅卌叁参參叄四壱壹幺廾廿弌弍弎弐拾捌\
    柒漆玖百肆萬貮貳贰阡陆陌陸零\u{F96B}\u{F973}\u{F978}\u{F9B2}\u{F9D1}\u{F9D3}\u{F9FD}\
    \u{20001}\u{20064}\u{200E2}\u{20121}\u{2092A}\u{20983}\u{2098C}\
    \u{2099C}\u{20AEA}\u{20AFD}\u{20B19}\u{22390}\u{22998}\u{23B1B}\u{2626D}\u{2F890}";

/// `str.isnumeric`: all that has a number's value, as fractions and Chinese numerals have.
pub(super) fn is_numeric(character: char) -> bool {
    use Category as C;
    matches!(
        get_general_category(character),
        C::DecimalNumber | C::LetterNumber | C::OtherNumber
    ) || LETTERS_FOR_NUMBERS.contains(character)
}

/// `\w` of Python's `re`.
pub(super) fn is_word(character: char) -> bool {
    character == '_' || is_letter(character) || is_numeric(character)
}

/// `str.isprintable`.
pub(super) fn is_printable(character: char) -> bool {
    use Category as C;
    character == ' '
        || !matches!(
            get_general_category(character),
            C::Control
                | C::Format
                | C::Surrogate
                | C::PrivateUse
                | C::Unassigned
                | C::LineSeparator
                | C::ParagraphSeparator
                | C::SpaceSeparator
        )
}

/// `str.isidentifier`: `XID_Start`, then `XID_Continue`.
pub(super) fn is_identifier(text: &str) -> bool {
    let mut characters = text.chars();
    characters.next().is_some_and(starts_name) && characters.all(continues_name)
}

fn starts_name(character: char) -> bool {
    let is_start = is_letter(character)
        || get_general_category(character) == Category::LetterNumber
        || matches!(
            character,
            '_' | '\u{1885}'..='\u{1886}' | '\u{2118}' | '\u{212E}'
        );
    // Two marks of Thai and Lao, and two of half width, stand only behind another character.
    let is_mark = matches!(character, '\u{E33}' | '\u{EB3}' | '\u{FF9E}' | '\u{FF9F}');
    is_start && !is_mark && !is_never_in_names(character)
}

fn continues_name(character: char) -> bool {
    use Category as C;
    let may_follow = matches!(
        get_general_category(character),
        C::NonspacingMark | C::SpacingMark | C::DecimalNumber | C::ConnectorPunctuation
    );
    let is_other = matches!(
        character,
        '\u{B7}' | '\u{387}' | '\u{1369}'
            ..='\u{1371}' | '\u{19DA}' | '\u{E33}' | '\u{EB3}' | '\u{FF9E}' | '\u{FF9F}'
    );
    starts_name(character) || is_other || may_follow && !is_never_in_names(character)
}

/// Letters that become more than a letter when they are normalized.
fn is_never_in_names(character: char) -> bool {
    matches!(
        character,
        '\u{37A}' | '\u{2E2F}' | '\u{FC5E}'..='\u{FC63}' | '\u{FDFA}'..='\u{FDFB}' | '\u{FE70}'
        | '\u{FE72}' | '\u{FE74}' | '\u{FE76}' | '\u{FE78}' | '\u{FE7A}' | '\u{FE7C}' | '\u{FE7E}'
    )
}

fn is_title_case(character: char) -> bool {
    get_general_category(character) == Category::TitlecaseLetter
}

/// `str.islower`, or `str.isupper`: something has a case, and nothing has another.
pub(super) fn is_all(text: &str, upper: bool) -> bool {
    let [mut found, mut others] = [false; 2];
    for character in text.chars() {
        let [this, that] = match upper {
            true => [character.is_uppercase(), character.is_lowercase()],
            false => [character.is_lowercase(), character.is_uppercase()],
        };
        found |= this;
        others |= that || is_title_case(character);
    }
    found && !others
}

/// `str.istitle`: capitals begin words, and only they do.
pub(super) fn is_title(text: &str) -> bool {
    let [mut inside, mut found] = [false; 2];
    for character in text.chars() {
        let capital = character.is_uppercase() || is_title_case(character);
        let small = character.is_lowercase();
        if capital && inside || small && !inside {
            return false;
        }
        inside = capital || small;
        found |= inside;
    }
    found
}

/// `str.title`: a capital behind everything that has no case.
pub(super) fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for_each_lowered(text, |character, lower| {
        match inside {
            true => out.push_str(lower),
            false => push_title(&mut out, character),
        }
        inside = character.is_lowercase() || character.is_uppercase() || is_title_case(character);
    });
    out
}

/// `str.capitalize`.
pub(super) fn capitalized(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for_each_lowered(text, |character, lower| match out.is_empty() {
        true => push_title(&mut out, character),
        false => out.push_str(lower),
    });
    out
}

/// `str.swapcase`.
pub(super) fn swapped_case(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for_each_lowered(text, |character, lower| {
        if character.is_uppercase() {
            out.push_str(lower);
        } else if character.is_lowercase() {
            out.extend(character.to_uppercase());
        } else {
            out.push(character);
        }
    });
    out
}

/// `str.casefold`: Unicode's full folding.
pub(super) fn folded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        let moved = |by: i32| char::from_u32(u32::from(character).wrapping_add_signed(by));
        let kept = match character {
            '\u{131}' | '\u{13A0}'..='\u{13F5}' => Some(character),
            // Cherokee folds to capitals.
            '\u{13F8}'..='\u{13FD}' => moved(-8),
            '\u{AB70}'..='\u{ABBF}' => moved(0x13A0 - 0xAB70),
            _ => None,
        };
        match kept {
            Some(kept) => out.push(kept),
            None => {
                let upper = character.to_lowercase().flat_map(char::to_uppercase);
                out.extend(upper.flat_map(char::to_lowercase));
            }
        }
    }
    out
}

/// Each character with what it is in lower case where it stands: a sigma that ends a word differs.
fn for_each_lowered(text: &str, mut take: impl FnMut(char, &str)) {
    let lower = text.to_lowercase();
    let mut rest = lower.as_str();
    for character in text.chars() {
        let length: usize = character.to_lowercase().map(char::len_utf8).sum();
        let (this, behind) = rest.split_at(length);
        take(character, this);
        rest = behind;
    }
}

/// A character as it begins a title.
fn push_title(out: &mut String, character: char) {
    let fixed = match character {
        '\u{1C4}'..='\u{1C6}' => "\u{1C5}",
        '\u{1C7}'..='\u{1C9}' => "\u{1C8}",
        '\u{1CA}'..='\u{1CC}' => "\u{1CB}",
        '\u{1F1}'..='\u{1F3}' => "\u{1F2}",
        '\u{1FB2}' => "\u{1FBA}\u{345}",
        '\u{1FB3}' | '\u{1FBC}' => "\u{1FBC}",
        '\u{1FB4}' => "\u{386}\u{345}",
        '\u{1FB7}' => "\u{391}\u{342}\u{345}",
        '\u{1FC2}' => "\u{1FCA}\u{345}",
        '\u{1FC3}' | '\u{1FCC}' => "\u{1FCC}",
        '\u{1FC4}' => "\u{389}\u{345}",
        '\u{1FC7}' => "\u{397}\u{342}\u{345}",
        '\u{1FF2}' => "\u{1FFA}\u{345}",
        '\u{1FF3}' | '\u{1FFC}' => "\u{1FFC}",
        '\u{1FF4}' => "\u{38F}\u{345}",
        '\u{1FF7}' => "\u{3A9}\u{342}\u{345}",
        _ => "",
    };
    match character {
        _ if !fixed.is_empty() => out.push_str(fixed),
        // Georgian has no titles.
        '\u{10D0}'..='\u{10FF}' => out.push(character),
        // Greek with a small iota, eight small before eight capital.
        '\u{1F80}'..='\u{1FAF}' => {
            out.extend(char::from_u32(u32::from(character) | 8));
        }
        // What stands for several letters.
        'ß' | '\u{587}' | '\u{FB00}'..='\u{FB06}' | '\u{FB13}'..='\u{FB17}' => {
            let mut upper = character.to_uppercase();
            out.extend(upper.next());
            out.extend(upper.flat_map(char::to_lowercase));
        }
        _ => out.extend(character.to_uppercase()),
    }
}
