package plane

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// apiVersion is the version of the envelope and its contents.
const apiVersion = "plane/v1"

// Envelope wraps every response of the API.
type Envelope[T any] struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Data       T        `json:"data" doc:"null: not known; meta.sources says why"`
	Meta       Meta     `json:"meta"`
	Error      *Refused `json:"error" doc:"null, or why there is no data"`
}

// Refused is an error in an envelope.
type Refused struct {
	*problem.Error
	RetryAfterSeconds int `json:"retryAfterSeconds,omitempty"`
}

// Meta describes the response itself.
type Meta struct {
	RequestID   string    `json:"requestId" doc:"id of the entry in the audit log"`
	GeneratedAt time.Time `json:"generatedAt"`
	Revision    string    `json:"revision" doc:"revision of the data; the event stream continues from it"`
	Page        *Page     `json:"page,omitempty"`
	Sources     []Source  `json:"sources" null:"never" doc:"sources of the data, with the status of each"`
}

// WithAuditID returns e with the id of the request's audit entry.
func (e Envelope[T]) WithAuditID(id string) any {
	e.Meta.RequestID = id
	return e
}

// AuditObject returns the object for the audit log, or "" if the data does not name one.
func (e Envelope[T]) AuditObject() string {
	if named, ok := any(e.Data).(httpapi.AuditNamer); ok {
		return named.AuditObject()
	}
	return ""
}

// AuditOrg returns the organisation for the audit log, or "" if the data does not name one.
func (e Envelope[T]) AuditOrg() string {
	if belonging, ok := any(e.Data).(httpapi.AuditOwner); ok {
		return belonging.AuditOrg()
	}
	return ""
}

// newEnvelope wraps data in an envelope.
func newEnvelope[T any](d *Service, kind string, data T, revision uint64, sources []Source) Envelope[T] {
	if sources == nil {
		sources = []Source{}
	}
	return Envelope[T]{APIVersion: apiVersion, Kind: kind, Data: data,
		Meta: Meta{GeneratedAt: d.Now().UTC(), Revision: strconv.FormatUint(revision, 10), Sources: sources}}
}

// EnvelopeForm returns the wire format of the API's responses and errors.
func EnvelopeForm() *httpapi.Encoder {
	return &httpapi.Encoder{
		EncodeResponse: func(_ httpapi.RequestInfo, resp any) httpapi.Response {
			return httpapi.Response{Status: http.StatusOK, Body: resp}
		},
		EncodeRefusal: func(about httpapi.RequestInfo, p *problem.Error) httpapi.Response {
			e := Envelope[*Empty]{APIVersion: apiVersion, Kind: "Error", Meta: Meta{RequestID: about.RequestID, GeneratedAt: about.Now.UTC(), Sources: []Source{}}, Error: &Refused{Error: p}}
			if p.RetryAfter > 0 {
				e.Error.RetryAfterSeconds = int((p.RetryAfter + time.Second - 1) / time.Second)
			}
			return httpapi.Response{Status: p.Code.Status(), Body: e}
		},
	}
}

// ParseEnvelope returns the error in an enveloped response, for a httpapi.Client. For a success it returns the whole envelope.
func ParseEnvelope(status int, answer []byte) ([]byte, *problem.Error, error) {
	var e struct {
		APIVersion string   `json:"apiVersion"`
		Error      *Refused `json:"error"`
	}
	if err := json.Unmarshal(answer, &e); err != nil || e.APIVersion != apiVersion {
		return nil, nil, errors.New("it gave no reason; check that the address is that of a Tailplane operator plane")
	}
	switch {
	case e.Error != nil && e.Error.Error != nil && e.Error.Code != "":
		return nil, e.Error.Error, nil
	case status/100 != 2:
		return nil, nil, errors.New("it gave no reason")
	}
	return answer, nil, nil
}
