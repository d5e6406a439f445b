// Package sanitize makes foreign text safe for lines that people read in raw form, as law 10 requires: the text
// cannot move a terminal's cursor, change the text direction or begin another line.
package sanitize

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// JSON replaces unprintable characters by \u escapes, beyond what JSON requires: DEL, C1 control
// characters, bidirectional marks and characters without width. b must be JSON. Such characters are
// then inside strings, and the result decodes to the same value. JSON returns b itself if nothing
// needs escaping.
func JSON(b []byte) []byte {
	if !slices.ContainsFunc(b, func(c byte) bool { return c >= 0x7f }) {
		return b
	}
	out := make([]byte, 0, len(b)+16)
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		switch {
		case r < 0x7f || unicode.IsPrint(r):
			out = append(out, b[:n]...)
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			out = appendU(appendU(out, hi), lo)
		default:
			out = appendU(out, r)
		}
		b = b[n:]
	}
	return out
}

// Line returns a text on one line, without characters that cannot be printed.
func Line(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, s)
	return strings.Join(strings.Fields(s), " ")
}

func appendU(dst []byte, r rune) []byte {
	const hex = "0123456789abcdef"
	return append(dst, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
}

// maxDisplayName is the most characters of a name for display in the schemas of Tailplane's kinds.
const maxDisplayName = 253

// DisplayName cleans a name for storage and display. The name comes from the identity provider or the device's owner and
// identifies no person, so an unusual one is shortened and never refused.
func DisplayName(name string) string {
	name = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, name)
	if characters := []rune(name); len(characters) > maxDisplayName {
		return string(characters[:maxDisplayName])
	}
	return name
}
