package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tailplane/tailplane/internal/util/yamledit"
)

// The output formats.
const (
	Table = "table"
	Wide  = "wide"
	JSON  = "json"
	YAML  = "yaml"
	Name  = "name"
)

// Formats returns all output formats.
func Formats() []string { return []string{Table, Wide, JSON, YAML, Name} }

// Encode encodes v as JSON, or as YAML with the same fields in the same order. It escapes characters that are unsafe for a terminal;
// parsers restore them.
func Encode(v any, format string) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("write the answer: %w", err)
	}
	if format == JSON {
		return escapeQuoted(buf.Bytes(), JSON), nil
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(escapeQuoted(buf.Bytes(), YAML), &doc); err != nil { // JSON is YAML, apart from a rare escape
		return nil, fmt.Errorf("write the answer: %w", err)
	}
	restyle(&doc)
	text, err := yamledit.Encode(&doc, true)
	if err != nil {
		return nil, fmt.Errorf("write the answer: %w", err)
	}
	return escapeQuoted(text, YAML), nil
}

// restyle turns JSON nodes into plain YAML. It keeps double quotes for strings with characters that need an escape.
func restyle(n *yaml.Node) {
	n.Style = 0
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" && strings.IndexFunc(n.Value, Unsafe) >= 0 {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, c := range n.Content {
		restyle(c)
	}
}

// escapeQuoted escapes the unsafe characters of JSON, or of YAML in which each such character is in double quotes, as Encode produces it.
func escapeQuoted(text []byte, format string) []byte {
	var b strings.Builder
	for _, r := range string(text) {
		switch {
		case r == '\n' || !Unsafe(r):
			b.WriteRune(r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		case format == YAML:
			fmt.Fprintf(&b, `\U%08x`, r)
		default: // UTF-16, as in JSON
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		}
	}
	return []byte(b.String())
}
