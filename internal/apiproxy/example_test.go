package apiproxy_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
)

// Example shows a handler that reports each step to the telemetry and ends it on every path.
func Example() {
	log := slog.New(slog.DiscardHandler)
	metrics := apiproxy.NewMetrics("v1.2.3", apiproxy.BuiltinResources())
	metrics.SetConfig(0, []string{"home"}, nil)
	o := &apiproxy.Telemetry{Metrics: metrics, Log: log, Now: time.Now} // Tracer and AuditLog are optional
	cluster := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, `{"kind":"PodList"}`) }))
	defer cluster.Close()

	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := o.Begin(r)
		var out apiproxy.Result
		defer func() { v.End(out) }()
		refuse := func(status int, message string) {
			out.Code, out.Message = status, message
			http.Error(w, message, status)
		}

		req, err := apiproxy.ParseRequest(r.Method, r.URL)
		if err != nil {
			v.SetRefused(apiproxy.RefusedForm)
			refuse(http.StatusBadRequest, err.Error())
			return
		}
		v.SetRequest(&req)
		v.SetRoute("", "home")
		if v.RequireAudit() != nil { // the audit log is down, and this request must be recorded
			refuse(http.StatusServiceUnavailable, "the audit log cannot be written")
			return
		}
		ask, err := http.NewRequestWithContext(r.Context(), r.Method, cluster.URL+r.URL.Path, nil)
		if err != nil {
			refuse(http.StatusInternalServerError, "internal error")
			return
		}
		call := v.StartCall("home", ask.Header) // adds the trace context and the audit id
		answer, err := http.DefaultClient.Do(ask)
		if err != nil {
			call.End(0, apiproxy.FailedConnect)
			out.Err = err
			refuse(http.StatusServiceUnavailable, "cluster home cannot be reached")
			return
		}
		defer answer.Body.Close()
		call.End(answer.StatusCode, "")
		out.Code = answer.StatusCode
		w.WriteHeader(answer.StatusCode)
		if req.Verb == "watch" {
			v.StreamOpened(answer.StatusCode) // from here on it is a stream
		}
		out.Bytes, out.Err = io.Copy(w, answer.Body)
	})

	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest("GET", "/api/v1/namespaces/shop/pods", nil))
	handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/api/v1/namespaces/shop/secrets/a/b/c/d?watch=1", nil))
	fmt.Println(w.Code, w.Body)

	families, err := metrics.Gather()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, f := range families {
		if f.GetName() != "mca_requests_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				fmt.Printf("%s=%s ", l.GetName(), l.GetValue())
			}
			fmt.Println(m.GetCounter().GetValue())
		}
	}
	// Output:
	// 200 {"kind":"PodList"}
	// cluster=home code=200 group= resource=pods subresource= verb=list 1
	// cluster=home code=200 group=other resource=other subresource=other verb=get 1
}
