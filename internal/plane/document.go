package plane

import (
	"context"
	_ "embed"
	"net/http"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/door"
)

// document is the OpenAPI description of the operations. It is written from them,
// and a test compares: go generate ./internal/door/openapi.
//
//go:embed openapi.json
var document []byte

// A Document describes the API for machines, in OpenAPI 3.1. It is sent as it is.
type Document struct{}

// Shape implements [door.Shaped].
func (Document) Shape(string) (door.Shape, error) {
	return door.Shape{Status: http.StatusOK, ContentType: "application/json", Body: document}, nil
}

// Forms says what the document is, for the document.
func (Document) Forms() map[string]any {
	return map[string]any{"application/json": map[string]string{}}
}

func describe(context.Context, access.Permit, Empty) (Document, error) { return Document{}, nil }

// An EventStream is what a stream of events looks like.
type EventStream struct{}

// Shape implements [door.Shaped], for the reference: no visit is answered with it.
func (EventStream) Shape(string) (door.Shape, error) {
	return door.Shape{Status: http.StatusOK, ContentType: "text/event-stream", Body: `retry: 2000

event: hello
data: {"serverTime":"2026-11-22T11:41:08Z","revision":"1795347668000000","heartbeatSeconds":15}

id: 1795347668000000
event: snapshot
data: {"revision":"1795347668000000","objects":{"cluster":[],"signin":null},"sources":[]}

id: 1795347668000001
event: signin.delete
data: {"id":"tailplane/alice-example-com-0f3c9a1b2d4e5f607182"}

id: 1795347668000002
event: source.status
data: {"name":"kubernetes","status":"down","since":"2026-11-22T11:41:08Z","message":"connection refused"}

event: bye
data: {"reason":"not_authorized_user"}
`}, nil
}

// Forms says what the stream is, for the document.
func (EventStream) Forms() map[string]any { return map[string]any{"text/event-stream": ""} }
