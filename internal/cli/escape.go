package cli

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxText bounds how much of one foreign text is shown.
const maxText = 4000

// safe makes text from a stranger harmless to a terminal: control characters,
// escape sequences, invisible characters and those that change the direction
// of writing are shown as what they are. The result is one line.
func safe(s string) string {
	if strings.IndexFunc(s, unsafeRune) < 0 && len(s) <= maxText && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		if b.Len() > maxText {
			b.WriteString("…")
			break
		}
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case unsafeRune(r):
			b.WriteString(escaped(r))
		default:
			b.WriteRune(r)
		}
		s = s[n:]
	}
	return b.String()
}

// unsafeRune reports whether r may not reach a terminal. unicode.IsPrint
// excludes control and format characters, so escapes and bidi marks, and all
// white space but the plain space.
func unsafeRune(r rune) bool { return !unicode.IsPrint(r) }

func escaped(r rune) string {
	switch {
	case r == '\n':
		return `\n`
	case r == '\t':
		return `\t`
	case r < 0x80:
		return fmt.Sprintf(`\x%02x`, r)
	case r < 0x10000:
		return fmt.Sprintf(`\u%04x`, r)
	}
	return fmt.Sprintf(`\U%08x`, r)
}

// word is s as one word of a POSIX shell, for commands to copy.
func word(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("./_-:@=+,", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// escapeQuoted escapes the unsafe characters of JSON, or of YAML in which every
// such character stands between double quotes, as show makes it.
func escapeQuoted(text []byte, form string) []byte {
	var b strings.Builder
	for _, r := range string(text) {
		switch {
		case r == '\n' || !unsafeRune(r):
			b.WriteRune(r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		case form == asYAML:
			fmt.Fprintf(&b, `\U%08x`, r)
		default: // UTF-16, as JSON has it
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		}
	}
	return []byte(b.String())
}
