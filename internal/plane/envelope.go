package plane

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/problem"
)

// APIVersion is the version of the envelope and of what is in it.
const APIVersion = "plane/v1"

// An Envelope is every answer of the API.
type Envelope[T any] struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Data       T        `json:"data" doc:"null: it is not known, and meta.sources says why"`
	Meta       Meta     `json:"meta"`
	Error      *Refused `json:"error" doc:"null, or why there is no data"`
}

// Refused is a refusal in an envelope.
type Refused struct {
	*problem.Error
	RetryAfterSeconds int `json:"retryAfterSeconds,omitempty"`
}

// Meta is what an answer says of itself.
type Meta struct {
	RequestID   string    `json:"requestId" doc:"names the entry of the audit record"`
	GeneratedAt time.Time `json:"generatedAt"`
	Revision    string    `json:"revision" doc:"of what is known; the event stream goes on from it"`
	Page        *Page     `json:"page,omitempty"`
	Sources     []Source  `json:"sources" doc:"where the data comes from, and how each answers"`
}

// WithAuditID fills in the name of the visit's entry.
func (e Envelope[T]) WithAuditID(id string) any {
	e.Meta.RequestID = id
	return e
}

// AuditObject tells the record what the data is about, when the data says so.
func (e Envelope[T]) AuditObject() string {
	if named, ok := any(e.Data).(door.Named); ok {
		return named.AuditObject()
	}
	return ""
}

// AuditOrg tells the record which organisation the data is about, when the data says so.
func (e Envelope[T]) AuditOrg() string {
	if belonging, ok := any(e.Data).(door.Belonging); ok {
		return belonging.AuditOrg()
	}
	return ""
}

// Answer puts data into an envelope.
func Answer[T any](d *Desk, kind string, data T, revision uint64, sources []Source) Envelope[T] {
	if sources == nil {
		sources = []Source{}
	}
	return Envelope[T]{APIVersion: APIVersion, Kind: kind, Data: data,
		Meta: Meta{GeneratedAt: d.Now().UTC(), Revision: strconv.FormatUint(revision, 10), Sources: sources}}
}

// Form is how the API's answers and refusals look on the wire.
func Form() *door.Form {
	return &door.Form{
		Answer: func(_ door.About, resp any) door.Shape { return door.Shape{Status: http.StatusOK, Body: resp} },
		Refuse: func(about door.About, p *problem.Error) door.Shape {
			e := Envelope[*Empty]{APIVersion: APIVersion, Kind: "Error", Meta: Meta{RequestID: about.RequestID, GeneratedAt: about.Now.UTC(), Sources: []Source{}}, Error: &Refused{Error: p}}
			if p.RetryAfter > 0 {
				e.Error.RetryAfterSeconds = int((p.RetryAfter + time.Second - 1) / time.Second)
			}
			return door.Shape{Status: p.Code.Status(), Body: e}
		},
	}
}

// Open is a door.Client's: it tells the refusal in an envelope. The response of
// an operation of the plane is the whole envelope.
func Open(status int, answer []byte) ([]byte, *problem.Error, error) {
	var e struct {
		APIVersion string   `json:"apiVersion"`
		Error      *Refused `json:"error"`
	}
	if err := json.Unmarshal(answer, &e); err != nil || e.APIVersion != APIVersion {
		return nil, nil, errors.New("it gave no reason: is it an operator plane of Tailplane?")
	}
	switch {
	case e.Error != nil && e.Error.Error != nil && e.Error.Code != "":
		return nil, e.Error.Error, nil
	case status/100 != 2:
		return nil, nil, errors.New("it gave no reason")
	}
	return answer, nil, nil
}
