// Package wire reads and writes lists and watch events as Kubernetes puts them
// on the wire, in JSON and in protobuf, without knowing what is in the objects.
// It keeps law 7: what is not understood, is cut off or breaks off is an error,
// never a shorter list.
//
// Nothing here holds a list in memory. A reader keeps one item until it knows
// the item's namespace and name, which come first in what a server writes, and
// lets the rest go by.
package wire

import (
	"mime"
	"strings"
)

// A Form is how an answer is written.
type Form struct {
	Proto bool  // protobuf in Kubernetes' envelope; else JSON
	Shape Shape // what became of the objects
}

// A Shape is what a server makes of objects before it writes them.
type Shape uint8

// What Accept may ask for.
const (
	Objects Shape = iota
	Metadata
	Table
)

// media types, of which only these two are merged.
const (
	mediaJSON  = "application/json"
	mediaProto = "application/vnd.kubernetes.protobuf"
)

// ParseForm reads a Content-Type, or one element of an Accept header without
// its weight. A type that is not merged, CBOR among them, is not ok.
func ParseForm(contentType string) (f Form, ok bool) {
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return Form{}, false
	}
	switch media {
	case mediaJSON:
	case mediaProto:
		f.Proto = true
	default:
		return Form{}, false
	}
	as, converted := params["as"]
	if !converted {
		return f, true
	}
	if params["g"] != "meta.k8s.io" || params["v"] != "v1" && params["v"] != "v1beta1" {
		return Form{}, false
	}
	switch as {
	case "Table":
		f.Shape = Table
		return f, !f.Proto // a Table has no protobuf
	case "PartialObjectMetadata", "PartialObjectMetadataList":
		f.Shape = Metadata
		return f, true
	}
	return Form{}, false
}

// MediaType is the Content-Type of an answer in this form. A server does not
// say the shape there, the objects do.
func (f Form) MediaType(stream bool) string {
	var b strings.Builder
	if !f.Proto {
		return mediaJSON
	}
	b.WriteString(mediaProto)
	if stream {
		b.WriteString(";stream=watch")
	}
	return b.String()
}
