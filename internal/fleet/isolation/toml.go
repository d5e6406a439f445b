package isolation

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// tomlWriter is a TOML document with the features that a runner's configuration needs: strings,
// numbers and booleans, then tables. It quotes all values, so that a name cannot add another line.
type tomlWriter struct{ strings.Builder }

// table starts a table or, with array, an element of an array of tables.
func (t *tomlWriter) table(path string, array bool) {
	if array {
		path = "[" + path + "]"
	}
	fmt.Fprintf(t, "\n[%s]\n", path)
}

func (t *tomlWriter) text(key, value string) {
	fmt.Fprintf(t, "%s = %s\n", tomlKey(key), tomlQuote(value))
}
func (t *tomlWriter) number(key string, n int)   { fmt.Fprintf(t, "%s = %d\n", tomlKey(key), n) }
func (t *tomlWriter) boolean(key string, b bool) { fmt.Fprintf(t, "%s = %t\n", tomlKey(key), b) }

// strings writes a table of strings, sorted by key. It writes nothing if there are none.
func (t *tomlWriter) strings(path string, m map[string]string) {
	if len(m) == 0 {
		return
	}
	t.table(path, false)
	for _, k := range slices.Sorted(maps.Keys(m)) {
		t.text(k, m[k])
	}
}

func tomlKey(key string) string {
	if key != "" && strings.Trim(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == "" {
		return key
	}
	return tomlQuote(key)
}

// tomlQuote returns a basic string. It replaces invalid UTF-8 by the replacement character.
func tomlQuote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20 || r == 0x7f:
			b.WriteString(`\u00` + strconv.FormatInt(int64(r)+0x100, 16)[1:])
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
