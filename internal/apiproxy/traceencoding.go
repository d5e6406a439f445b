package apiproxy

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
	otlpRequest struct {
		ResourceSpans []otlpResourceSpans `json:"resourceSpans"`
	}
	otlpResourceSpans struct {
		Resource   otlpResource     `json:"resource"`
		ScopeSpans []otlpScopeSpans `json:"scopeSpans"`
	}
	otlpResource struct {
		Attributes []otlpKeyValue `json:"attributes"`
	}
	otlpScopeSpans struct {
		Scope otlpScope  `json:"scope"`
		Spans []otlpSpan `json:"spans"`
	}
	otlpScope struct {
		Name    string `json:"name"`
		Version string `json:"version,omitempty"`
	}
	otlpSpan struct {
		TraceID                string         `json:"traceId"`
		SpanID                 string         `json:"spanId"`
		TraceState             string         `json:"traceState,omitempty"`
		ParentSpanID           string         `json:"parentSpanId,omitempty"`
		Flags                  uint32         `json:"flags"`
		Name                   string         `json:"name"`
		Kind                   int            `json:"kind"`
		Start                  string         `json:"startTimeUnixNano"`
		End                    string         `json:"endTimeUnixNano"`
		Attributes             []otlpKeyValue `json:"attributes,omitempty"`
		DroppedAttributesCount int            `json:"droppedAttributesCount,omitempty"`
		Events                 []otlpEvent    `json:"events,omitempty"`
		Status                 otlpStatus     `json:"status"`
	}
	otlpEvent struct {
		Time       string         `json:"timeUnixNano"`
		Name       string         `json:"name"`
		Attributes []otlpKeyValue `json:"attributes,omitempty"`
	}
	otlpStatus struct {
		Message string `json:"message,omitempty"`
		Code    int    `json:"code,omitempty"`
	}
	otlpKeyValue struct {
		Key   string    `json:"key"`
		Value otlpValue `json:"value"`
	}
	otlpValue struct {
		String *string         `json:"stringValue,omitempty"`
		Bool   *bool           `json:"boolValue,omitempty"`
		Int    *string         `json:"intValue,omitempty"`
		Double *float64        `json:"doubleValue,omitempty"`
		Array  *otlpArrayValue `json:"arrayValue,omitempty"`
	}
	otlpArrayValue struct {
		Values []otlpValue `json:"values"`
	}
)

// Flags of a span, above the eight bits of the trace flags.
const (
	spanFlagHasRemote = 0x100
	spanFlagIsRemote  = 0x200
)

// otlpStatusCodes maps the SDK's status codes to those of OTLP, which differ.
var otlpStatusCodes = map[codes.Code]int{codes.Unset: 0, codes.Ok: 1, codes.Error: 2}

// encodeSpans returns the export request for spans. All spans have the same resource.
func encodeSpans(of []otlpKeyValue, spans []sdktrace.ReadOnlySpan) ([]byte, error) {
	var scopes []otlpScopeSpans
	byScope := map[otlpScope]int{}
	for _, s := range spans {
		from := otlpScope{s.InstrumentationScope().Name, s.InstrumentationScope().Version}
		i, ok := byScope[from]
		if !ok {
			i = len(scopes)
			byScope[from] = i
			scopes = append(scopes, otlpScopeSpans{Scope: from})
		}
		scopes[i].Spans = append(scopes[i].Spans, encodeSpan(s))
	}
	return json.Marshal(otlpRequest{[]otlpResourceSpans{{Resource: otlpResource{of}, ScopeSpans: scopes}}})
}

func encodeSpan(s sdktrace.ReadOnlySpan) otlpSpan {
	is, parent := s.SpanContext(), s.Parent()
	out := otlpSpan{
		TraceID: is.TraceID().String(), SpanID: is.SpanID().String(), TraceState: is.TraceState().String(),
		Flags: uint32(is.TraceFlags()) | spanFlagHasRemote, Name: s.Name(), Kind: int(s.SpanKind()), // OTLP uses the same numbers
		Start: otlpTime(s.StartTime()), End: otlpTime(s.EndTime()), Attributes: otlpAttributes(s.Attributes()),
		DroppedAttributesCount: s.DroppedAttributes(),
		Status:                 otlpStatus{Message: s.Status().Description, Code: otlpStatusCodes[s.Status().Code]},
	}
	if parent.SpanID().IsValid() {
		out.ParentSpanID = parent.SpanID().String()
	}
	if parent.IsRemote() {
		out.Flags |= spanFlagIsRemote
	}
	for _, e := range s.Events() {
		out.Events = append(out.Events, otlpEvent{Time: otlpTime(e.Time), Name: e.Name, Attributes: otlpAttributes(e.Attributes)})
	}
	return out
}

func otlpTime(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }

func otlpAttributes(in []attribute.KeyValue) []otlpKeyValue {
	out := make([]otlpKeyValue, 0, len(in))
	for _, kv := range in {
		out = append(out, otlpKeyValue{string(kv.Key), encodeAttributeValue(kv.Value)})
	}
	return out
}

// encodeAttributeValue encodes the kinds that the adapter uses, and converts all others to text.
func encodeAttributeValue(v attribute.Value) otlpValue {
	switch v.Type() {
	case attribute.BOOL:
		return otlpValue{Bool: new(v.AsBool())}
	case attribute.INT64:
		return otlpValue{Int: new(strconv.FormatInt(v.AsInt64(), 10))}
	case attribute.FLOAT64:
		return otlpValue{Double: new(v.AsFloat64())}
	case attribute.STRINGSLICE:
		a := &otlpArrayValue{Values: []otlpValue{}}
		for _, s := range v.AsStringSlice() {
			a.Values = append(a.Values, otlpValue{String: new(s)})
		}
		return otlpValue{Array: a}
	}
	return otlpValue{String: new(v.String())}
}
