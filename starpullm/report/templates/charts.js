// Colours the axes and texts of all charts as the page is, light or dark, and again when that changes.
const charts = () => Bokeh.documents.flatMap((part) => part.roots())
function colourCharts() {
  const style = getComputedStyle(document.documentElement)
  const text = style.getPropertyValue("--text").trim(), line = style.getPropertyValue("--line").trim()
  for (const plot of charts()) {
    for (const model of [...plot.below, ...plot.left, ...plot.center]) {
      if ("axis_line_color" in model)
        model.setv({axis_label_text_color: text, major_label_text_color: text, axis_line_color: text,
          major_tick_line_color: text, minor_tick_line_color: line})
      if ("label_text_color" in model) model.label_text_color = text
      if ("grid_line_color" in model) model.grid_line_color = line
    }
  }
}
function whenDrawn() {
  if (charts().length < document.querySelectorAll("[data-root-id]").length) { setTimeout(whenDrawn, 50); return }
  colourCharts()
  document.documentElement.dataset.charts = "drawn"
}
window.addEventListener("load", whenDrawn)
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", colourCharts)
