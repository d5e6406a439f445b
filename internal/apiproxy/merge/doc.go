// Package merge merges the lists and watches of several clusters into one. It keeps law 7. A list is complete or it is
// an error. A watch contains only events of the clusters. A response names the clusters that are left out. A position
// that cannot be determined is expired, so that the client lists again.
//
// The package handles bytes, not HTTP. For each request the server creates a [Collection]. Its Ask sends the client's
// request to a member, with the position parameters of that member:
//
//	c := &merge.Collection{
//		Members: members, Epoch: doc.Epoch, Width: doc.Width, Spread: true,
//		Hash: position.CollectionHash(r.URL.Path, query.Get("labelSelector"), query.Get("fieldSelector")),
//		Ring: rings.For(collection), // one *position.Ring for all streams of a collection
//		Bare: query.Get("includeObject") == "None",
//		Ask: func(ctx context.Context, m merge.Member, a position.Ask) (*merge.Body, error) {
//			v := maps.Clone(query)
//			a.Set(v) // sets positions, limit and watch; keeps selectors
//			v.Set("includeObject", ...) // Metadata instead of None: rows need names
//			resp, err := clusters[m.Name].Get(ctx, path, v, accept) // if a.Names is set: JSON metadata lists
//			if err != nil {
//				return nil, err
//			}
//			form, ok := wire.ParseForm(resp.Header.Get("Content-Type"))
//			if resp.StatusCode != 200 {
//				defer resp.Body.Close()
//				b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
//				return nil, wire.ParseStatus(b, form.Proto, resp.StatusCode)
//			}
//			form.Shape = shape // as requested by Accept; the Content-Type does not contain it
//			if a.Names {
//				form.Shape = wire.Metadata
//			}
//			return &merge.Body{ReadCloser: resp.Body, Form: form}, nil
//		},
//	}
//
// A list:
//
//	list, err := c.List(r.Context(), position.ParseQuery(query, false))
//	if errors.Is(err, merge.ErrForms) {
//		// retry with an Ask that accepts only JSON
//	}
//	if status, ok := errors.AsType[*wire.Status](err); ok {
//		// w.WriteHeader(status.Code), status.Append, Retry-After: status.RetryAfter
//	}
//	defer list.Close()
//	w.Header().Set("Content-Type", list.Form.MediaType(false)) // and a Warning for each of list.Left
//	if _, err := list.WriteTo(w); err != nil {
//		panic(http.ErrAbortHandler) // never a well-formed short list
//	}
//
// A watch. The Flush of an http.ResponseController also sends the headers:
//
//	watch, err := c.Watch(r.Context(), position.ParseQuery(query, true), wire.Form{Proto: prefersProto})
//	// errors as above
//	watch.Timeout, watch.Drain, watch.Report = timeout, draining, report
//	w.Header().Set("Content-Type", watch.Form.MediaType(true))
//	err = watch.Run(r.Context(), &merge.Framed{Out: w, Proto: watch.Form.Proto, Push: controller.Flush})
//
// If Run returns an error that is not a *wire.Status, the server must abort the connection. For a WebSocket, the server
// implements a [Sink] that sends each event as one message.
//
// A vector must never reach a cluster. The server must therefore pass a request for a collection of a single cluster
// through [position.Place.Single], and a GET of one object through [position.Place.Named]. If another cluster held the
// collection before, the server uses a Collection with one member, so that its positions are vectors.
package merge
