package otlpjson

import (
	"encoding/json"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// The OTLP messages for spans, in the names and forms of the JSON encoding. Ids are hexadecimal, 64-bit
// numbers are strings, enumerations are numbers.
type (
	request struct {
		ResourceSpans []resourceSpans `json:"resourceSpans"`
	}
	resourceSpans struct {
		Resource   resource     `json:"resource"`
		ScopeSpans []scopeSpans `json:"scopeSpans"`
	}
	resource struct {
		Attributes []keyValue `json:"attributes"`
	}
	scopeSpans struct {
		Scope scope  `json:"scope"`
		Spans []span `json:"spans"`
	}
	scope struct {
		Name    string `json:"name"`
		Version string `json:"version,omitempty"`
	}
	span struct {
		TraceID                string     `json:"traceId"`
		SpanID                 string     `json:"spanId"`
		TraceState             string     `json:"traceState,omitempty"`
		ParentSpanID           string     `json:"parentSpanId,omitempty"`
		Flags                  uint32     `json:"flags"`
		Name                   string     `json:"name"`
		Kind                   int        `json:"kind"`
		Start                  string     `json:"startTimeUnixNano"`
		End                    string     `json:"endTimeUnixNano"`
		Attributes             []keyValue `json:"attributes,omitempty"`
		DroppedAttributesCount int        `json:"droppedAttributesCount,omitempty"`
		Events                 []event    `json:"events,omitempty"`
		Status                 status     `json:"status"`
	}
	event struct {
		Time       string     `json:"timeUnixNano"`
		Name       string     `json:"name"`
		Attributes []keyValue `json:"attributes,omitempty"`
	}
	status struct {
		Message string `json:"message,omitempty"`
		Code    int    `json:"code,omitempty"`
	}
	keyValue struct {
		Key   string `json:"key"`
		Value value  `json:"value"`
	}
	value struct {
		String *string     `json:"stringValue,omitempty"`
		Bool   *bool       `json:"boolValue,omitempty"`
		Int    *string     `json:"intValue,omitempty"`
		Double *float64    `json:"doubleValue,omitempty"`
		Array  *arrayValue `json:"arrayValue,omitempty"`
	}
	arrayValue struct {
		Values []value `json:"values"`
	}
)

// Flags of a span, above the eight bits of the trace flags.
const (
	hasRemote = 0x100
	isRemote  = 0x200
)

// statusCodes maps the SDK's status codes to those of OTLP, which differ.
var statusCodes = map[codes.Code]int{codes.Unset: 0, codes.Ok: 1, codes.Error: 2}

// encode returns the export request for spans. All spans have the same resource.
func encode(of []keyValue, spans []sdktrace.ReadOnlySpan) ([]byte, error) {
	var scopes []scopeSpans
	byScope := map[scope]int{}
	for _, s := range spans {
		from := scope{s.InstrumentationScope().Name, s.InstrumentationScope().Version}
		i, ok := byScope[from]
		if !ok {
			i = len(scopes)
			byScope[from] = i
			scopes = append(scopes, scopeSpans{Scope: from})
		}
		scopes[i].Spans = append(scopes[i].Spans, encodeSpan(s))
	}
	return json.Marshal(request{[]resourceSpans{{Resource: resource{of}, ScopeSpans: scopes}}})
}

func encodeSpan(s sdktrace.ReadOnlySpan) span {
	is, parent := s.SpanContext(), s.Parent()
	out := span{
		TraceID: is.TraceID().String(), SpanID: is.SpanID().String(), TraceState: is.TraceState().String(),
		Flags: uint32(is.TraceFlags()) | hasRemote, Name: s.Name(), Kind: int(s.SpanKind()), // OTLP uses the same numbers
		Start: nanos(s.StartTime()), End: nanos(s.EndTime()), Attributes: keyValues(s.Attributes()),
		DroppedAttributesCount: s.DroppedAttributes(),
		Status:                 status{Message: s.Status().Description, Code: statusCodes[s.Status().Code]},
	}
	if parent.SpanID().IsValid() {
		out.ParentSpanID = parent.SpanID().String()
	}
	if parent.IsRemote() {
		out.Flags |= isRemote
	}
	for _, e := range s.Events() {
		out.Events = append(out.Events, event{Time: nanos(e.Time), Name: e.Name, Attributes: keyValues(e.Attributes)})
	}
	return out
}

func nanos(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }

func keyValues(in []attribute.KeyValue) []keyValue {
	out := make([]keyValue, 0, len(in))
	for _, kv := range in {
		out = append(out, keyValue{string(kv.Key), encodeValue(kv.Value)})
	}
	return out
}

// encodeValue encodes the kinds that the adapter uses, and converts all others to text.
func encodeValue(v attribute.Value) value {
	switch v.Type() {
	case attribute.BOOL:
		return value{Bool: new(v.AsBool())}
	case attribute.INT64:
		return value{Int: new(strconv.FormatInt(v.AsInt64(), 10))}
	case attribute.FLOAT64:
		return value{Double: new(v.AsFloat64())}
	case attribute.STRINGSLICE:
		a := &arrayValue{Values: []value{}}
		for _, s := range v.AsStringSlice() {
			a.Values = append(a.Values, value{String: new(s)})
		}
		return value{Array: a}
	}
	return value{String: new(v.String())}
}
