package yamledit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// nodeOfJSON reads JSON and keeps its order. The YAML parser cannot do that, because it does not accept tabs and all escapes of JSON.
func nodeOfJSON(d *json.Decoder, text []byte, depth int) (*yaml.Node, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("it is nested deeper than %d levels", maxDepth)
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	n := &yaml.Node{Kind: yaml.ScalarNode, Line: 1 + bytes.Count(text[:d.InputOffset()], []byte("\n"))}
	switch v := t.(type) {
	case json.Delim:
		n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
		if v == '{' {
			n.Kind, n.Tag = yaml.MappingNode, "!!map"
		}
		for d.More() { // keys are tokens like values
			c, err := nodeOfJSON(d, text, depth+1)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, c)
		}
		_, err := d.Token()
		return n, err
	case json.Number:
		n.Tag, n.Value = numberNode(v).Tag, v.String()
	case string:
		n.Tag, n.Value = "!!str", v
	case bool:
		n.Tag, n.Value = "!!bool", strconv.FormatBool(v)
	default:
		n.Tag, n.Value = "!!null", "null"
	}
	return n, nil
}

// rewriteJSON writes a node as JSON with the indentation of text.
func rewriteJSON(text []byte, n *yaml.Node) ([]byte, error) {
	var b bytes.Buffer
	if err := writeJSON(&b, n); err != nil {
		return nil, err
	}
	trimmed := bytes.TrimLeft(text, " \t\r\n")
	if _, rest, lines := bytes.Cut(trimmed, []byte("\n")); lines {
		indent := rest[:len(rest)-len(bytes.TrimLeft(rest, " \t"))]
		var pretty bytes.Buffer
		if err := json.Indent(&pretty, b.Bytes(), "", string(indent)); err != nil {
			return nil, err
		}
		b = pretty
	}
	end := text[len(bytes.TrimRight(text, " \t\r\n")):]
	return slices.Concat(text[:len(text)-len(trimmed)], b.Bytes(), end), nil
}

func writeJSON(b *bytes.Buffer, n *yaml.Node) error {
	switch n.Kind {
	case yaml.MappingNode:
		b.WriteByte('{')
		for i := 0; i+1 < len(n.Content); i += 2 {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := writeString(b, n.Content[i].Value); err != nil {
				return err
			}
			b.WriteByte(':')
			if err := writeJSON(b, n.Content[i+1]); err != nil {
				return err
			}
		}
		b.WriteByte('}')
		return nil
	case yaml.SequenceNode:
		b.WriteByte('[')
		for i, c := range n.Content {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := writeJSON(b, c); err != nil {
				return err
			}
		}
		b.WriteByte(']')
		return nil
	}
	if n.ShortTag() == "!!str" || n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 {
		return writeString(b, n.Value)
	}
	b.WriteString(n.Value) // a number, a boolean or null, unchanged
	return nil
}

func writeString(b *bytes.Buffer, s string) error {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		return err
	}
	b.Truncate(b.Len() - 1) // the line feed
	return nil
}
