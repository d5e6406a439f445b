package attacktest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// Answer is a response of the server.
type Answer struct {
	Status  int
	Header  http.Header
	Body    string
	Problem problem.Error // zero if the body is not a problem
}

func (a Answer) Code() problem.Code { return a.Problem.Code }

func (a Answer) String() string { return fmt.Sprintf("%d %s", a.Status, a.Body) }

// NewRequest returns a request to the access server. headers are pairs of header names and values.
func (s *Env) NewRequest(t *testing.T, method, path, body string, headers ...string) *http.Request {
	t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, s.Server()+path, r)
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
			continue
		}
		req.Header[headers[i]] = append(req.Header[headers[i]], headers[i+1]) // keep the exact spelling of the name
	}
	return req
}

// Do sends a request and reads the response.
func Do(t *testing.T, hc *http.Client, req *http.Request) Answer {
	t.Helper()
	res, err := hc.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return ReadAnswer(t, res)
}

func ReadAnswer(t *testing.T, res *http.Response) Answer {
	t.Helper()
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := Answer{Status: res.StatusCode, Header: res.Header, Body: string(b)}
	_ = json.Unmarshal(b, &a.Problem) // not a problem: the code stays empty
	if a.Problem.Code == "" {
		a.Problem = problem.Error{}
	}
	return a
}

// Ask sends a request as p and reads the response.
func (s *Env) Ask(t *testing.T, p *testenv.Person, method, path, body string, headers ...string) Answer {
	t.Helper()
	return Do(t, s.HTTPClient(p), s.NewRequest(t, method, path, body, headers...))
}
