package codec

import (
	"encoding/binary"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

// BookmarkObject is a bookmark.
type BookmarkObject struct {
	Kind, APIVersion string // of the objects of the watch
	ResourceVersion  string
	InitialEnd       bool
	// Cells is the number of columns of a Table. Bare makes the row's object null, except in the bookmark
	// that ends the initial events.
	Cells int
	Bare  bool
}

// Append appends the bookmark as a watch event.
func (m BookmarkObject) Append(dst []byte, f Format) []byte {
	if f.Proto {
		meta := appendText(nil, 6, m.ResourceVersion)
		if m.InitialEnd {
			meta = appendText(meta, 12, appendText(appendText(nil, 1, initialEnd), 2, "true"))
		}
		return appendEvent(dst, EventBookmark, appendEnvelope(nil, m.Kind, m.APIVersion, appendText(nil, 1, meta)))
	}
	dst = append(dst, `{"type":"BOOKMARK","object":`...)
	if f.Shape != ShapeTable {
		return append(m.object(dst, m.Kind, m.APIVersion), '}')
	}
	dst = append(dst, `{"kind":"Table","apiVersion":`...)
	dst = strconv.AppendQuote(dst, m.APIVersion)
	dst = append(dst, `,"metadata":{"resourceVersion":"`...)
	dst = append(dst, m.ResourceVersion...)
	dst = append(dst, `"},"columnDefinitions":null,"rows":[{"cells":[`...)
	for i := range m.Cells {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, "null"...)
	}
	dst = append(dst, `],"object":`...)
	if m.Bare && !m.InitialEnd {
		dst = append(dst, "null"...)
	} else {
		dst = m.object(dst, "PartialObjectMetadata", m.APIVersion)
	}
	return append(dst, `}]}}`...)
}

func (m BookmarkObject) object(dst []byte, kind, version string) []byte {
	dst = append(dst, `{"kind":`...)
	dst = strconv.AppendQuote(dst, kind)
	dst = append(dst, `,"apiVersion":`...)
	dst = strconv.AppendQuote(dst, version)
	dst = append(dst, `,"metadata":{"resourceVersion":"`...)
	dst = append(dst, m.ResourceVersion...)
	dst = append(dst, `","creationTimestamp":null`...)
	if m.InitialEnd {
		dst = append(dst, `,"annotations":{"`+initialEnd+`":"true"}`...)
	}
	return append(dst, `}}`...)
}

// AppendError appends the ERROR event that ends a watch with a Status.
func AppendError(dst []byte, proto bool, s *Status) []byte {
	if proto {
		return appendEvent(dst, EventError, s.Append(nil, true))
	}
	dst = append(dst, `{"type":"ERROR","object":`...)
	return append(s.Append(dst, false), '}')
}

func appendEvent(dst []byte, t EventType, object []byte) []byte {
	dst = appendText(dst, 1, t.String())
	return appendText(dst, 2, appendText(nil, 1, object))
}

// AppendFrame appends an event with its framing: JSON with a trailing newline, protobuf with a length prefix.
func AppendFrame(dst, event []byte, proto bool) []byte {
	if proto {
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(event)))
		return append(dst, event...)
	}
	return append(append(dst, event...), '\n')
}

// ListHead is the metadata of a merged list. Its ResourceVersion is a vector; the one in ListMeta is ignored.
type ListHead struct {
	Kind, APIVersion string
	ResourceVersion  string
	Meta             ListMeta
}

// AppendJSON appends a list up to its first item. If late is set, it leaves the metadata to AppendEnd,
// because it is known only after the items.
func (h ListHead) AppendJSON(dst []byte, f Format, columns *Columns, late bool) []byte {
	if late {
		return append(dst, `{"items":[`...)
	}
	dst = h.appendMeta(append(dst, '{'))
	if f.Shape == ShapeTable {
		dst = append(dst, `,"columnDefinitions":`...)
		dst = columns.AppendWithCluster(dst)
		return append(dst, `,"rows":[`...)
	}
	return append(dst, `,"items":[`...)
}

// AppendEnd appends the part after the last item.
func (h ListHead) AppendEnd(dst []byte, late bool) []byte {
	dst = append(dst, ']')
	if late {
		dst = h.appendMeta(append(dst, ','))
	}
	return append(dst, "}\n"...)
}

func (h ListHead) appendMeta(dst []byte) []byte {
	dst = append(dst, `"kind":`...)
	dst = strconv.AppendQuote(dst, h.Kind)
	dst = append(dst, `,"apiVersion":`...)
	dst = strconv.AppendQuote(dst, h.APIVersion)
	dst = append(dst, `,"metadata":{"resourceVersion":"`...)
	dst = append(dst, h.ResourceVersion...)
	dst = append(dst, '"')
	if h.Meta.Continue != "" {
		dst = append(dst, `,"continue":`...)
		dst = strconv.AppendQuote(dst, h.Meta.Continue)
	}
	if h.Meta.Remaining >= 0 {
		dst = append(dst, `,"remainingItemCount":`...)
		dst = strconv.AppendInt(dst, h.Meta.Remaining, 10)
	}
	if len(h.Meta.Shard) > 0 {
		dst = append(dst, `,"shardInfo":`...)
		dst = append(dst, h.Meta.Shard...)
	}
	return append(dst, '}')
}

// AppendProto appends a list up to its first item. rest is the number of bytes of the items and fields that
// follow. AppendProtoEnd must follow them.
func (h ListHead) AppendProto(dst []byte, rest uint64) []byte {
	meta := appendText(nil, 1, "")
	meta = appendText(meta, 2, h.ResourceVersion)
	meta = appendText(meta, 3, h.Meta.Continue)
	if h.Meta.Remaining >= 0 {
		meta = protowire.AppendVarint(protowire.AppendTag(meta, 4, protowire.VarintType), uint64(h.Meta.Remaining))
	}
	if len(h.Meta.Shard) > 0 {
		meta = appendText(meta, 5, h.Meta.Shard)
	}
	meta = appendText(nil, 1, meta)
	dst = append(dst, magic...)
	dst = appendText(dst, 1, appendText(appendText(nil, 1, h.APIVersion), 2, h.Kind))
	dst = protowire.AppendTag(dst, 2, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(len(meta))+rest)
	return append(dst, meta...)
}

// AppendProtoEnd appends the rest of the envelope after a list.
func AppendProtoEnd(dst []byte) []byte {
	return appendText(appendText(dst, 3, ""), 4, "")
}
