package gossiphttp

import (
	"bytes"
	"html/template"
	"time"

	"github.com/tailplane/tailplane/internal/gossip"
)

var clustersTemplate = template.Must(template.New("clusters").Funcs(template.FuncMap{"time": func(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.Format(time.RFC3339)
}}).Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Clusters</title>
<style>body{font:16px sans-serif;margin:2em}table{border-collapse:collapse}td,th{padding:.3em .8em;text-align:left;border-bottom:1px solid #ccc}</style>
<h1>Clusters</h1>
{{if .Isolated}}<p><strong>This server cannot reach any other server, so the state of the other clusters is unknown.</strong></p>
{{end}}<table><thead><tr><th>Name<th>State<th>API<th>Sign-in<th>Labels<th>Last seen<th>Notes</thead><tbody>
{{range .Clusters}}<tr><td>{{.Name}}<td>{{.State}}<td>{{.APIEndpoint}}<td>{{.URL}}<td>{{range $k, $v := .Labels}}{{$k}}={{$v}} {{end}}<td>{{time .LastSeen}}<td>{{if .Self}}this one {{end}}{{if not .Verified}}unverified {{end}}{{if .Conflict}}in conflict{{end}}
{{end}}</tbody></table>
{{if .Hidden}}<p>{{.Hidden}} not shown: dead or left. Add ?state=all.</p>
{{end}}</html>
`))

// RenderClusters returns the page. It escapes all text that other servers announce.
func RenderClusters(list gossip.ClusterList) ([]byte, error) {
	var b bytes.Buffer
	if err := clustersTemplate.Execute(&b, list); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
