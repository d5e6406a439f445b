// Package codec reads and writes Kubernetes lists and watch events in JSON and protobuf, without decoding the
// objects. It keeps law 7: unknown, truncated or interrupted input is an error, never a shorter list.
//
// The package never holds a whole list in memory. A reader holds one item until it knows the item's namespace
// and name, which a server writes first. It then streams the rest of the item.
package codec

import (
	"mime"
)

// Format is the encoding of a response.
type Format struct {
	Proto bool  // protobuf in the Kubernetes envelope; otherwise JSON
	Shape Shape // the transformation of the objects
}

// Shape is the transformation that a server applies to objects before it encodes them.
type Shape uint8

// The shapes that an Accept header may request.
const (
	ShapeObjects Shape = iota
	ShapeMetadata
	ShapeTable
)

// The media types that can be merged.
const (
	mediaJSON  = "application/json"
	mediaProto = "application/vnd.kubernetes.protobuf"
)

// ParseFormat parses a Content-Type, or one element of an Accept header without its weight. ok is false for a
// type that cannot be merged, such as CBOR.
func ParseFormat(contentType string) (f Format, ok bool) {
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return Format{}, false
	}
	switch media {
	case mediaJSON:
	case mediaProto:
		f.Proto = true
	default:
		return Format{}, false
	}
	as, converted := params["as"]
	if !converted {
		return f, true
	}
	if params["g"] != "meta.k8s.io" || params["v"] != "v1" && params["v"] != "v1beta1" {
		return Format{}, false
	}
	switch as {
	case "Table":
		f.Shape = ShapeTable
		return f, !f.Proto // a Table has no protobuf encoding
	case "PartialObjectMetadata", "PartialObjectMetadataList":
		f.Shape = ShapeMetadata
		return f, true
	}
	return Format{}, false
}

// MediaType returns the Content-Type of a response in this form. Like a server, it does not include the
// shape, which the objects show.
func (f Format) MediaType(stream bool) string {
	switch {
	case !f.Proto:
		return mediaJSON
	case stream:
		return mediaProto + ";stream=watch"
	}
	return mediaProto
}
