// Package printable writes JSON that moves no terminal's cursor and turns no
// text around. It keeps law 10 for every line that people read raw.
package printable

import (
	"slices"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// JSON writes what does not print as \u escapes, beyond what JSON demands: DEL,
// the C1 controls that some terminals obey, marks that turn the direction of
// text, and what has no width. b is JSON, so such runes are inside strings, and
// it still parses to the same. Where nothing is to be done, b itself is returned.
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

func appendU(dst []byte, r rune) []byte {
	const hex = "0123456789abcdef"
	return append(dst, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
}
