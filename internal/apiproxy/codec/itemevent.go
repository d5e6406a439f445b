package codec

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// AppendItem consumes the item that Next found and appends an ADDED event for it. Items of a typed list have
// no kind, so the event gets it from the list. withColumns includes the columns of a Table.
func (l *ListReader) AppendItem(dst []byte, withColumns bool) ([]byte, error) {
	var item bytes.Buffer
	if err := l.CopyItem(&item); err != nil {
		return dst, err
	}
	kind := l.ItemKind()
	if l.format.Proto {
		num, _, n := protowire.ConsumeTag(item.Bytes())
		if n < 0 || num != 2 {
			return dst, fmt.Errorf("%w: no item", ErrProtobuf)
		}
		object, size := protowire.ConsumeBytes(item.Bytes()[n:])
		if size < 0 {
			return dst, ErrProtobuf
		}
		return appendEvent(dst, EventAdded, appendEnvelope(nil, kind, l.APIVersion, object)), nil
	}
	dst = append(dst, `{"type":"ADDED","object":{`...)
	if l.format.Shape == ShapeTable {
		dst = append(dst, `"kind":"Table","apiVersion":`...)
		dst = strconv.AppendQuote(dst, l.APIVersion)
		dst = append(dst, `,"metadata":{},"columnDefinitions":`...)
		if withColumns && l.Columns != nil {
			dst = append(dst, l.Columns.raw...)
		} else {
			dst = append(dst, "null"...)
		}
		dst = append(append(dst, `,"rows":[`...), item.Bytes()...)
		return append(dst, "]}}"...), nil
	}
	object := trim(item.Bytes())[1:] // after the opening brace
	has, err := hasKind(item.Bytes())
	if err != nil {
		return dst, err
	}
	if !has {
		dst = append(dst, `"kind":`...)
		dst = strconv.AppendQuote(dst, kind)
		dst = append(dst, `,"apiVersion":`...)
		dst = strconv.AppendQuote(dst, l.APIVersion)
		if string(trim(object)) != "}" {
			dst = append(dst, ',')
		}
	}
	return append(append(dst, object...), '}'), nil
}

// ItemKind returns the kind of the items, derived from the kind of the list.
func (l *ListReader) ItemKind() string { return strings.TrimSuffix(l.Kind, "List") }

// hasKind reports whether an object has a kind field.
func hasKind(object []byte) (bool, error) {
	w := view(object)
	for c := w.container('{'); c.next(); w.skip() {
		if string(c.key) == "kind" {
			return true, nil
		}
	}
	return false, w.bad
}
