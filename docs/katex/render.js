// Formulas are LaTeX in the page; where scripts run, KaTeX sets them.
document.querySelectorAll(".arithmatex").forEach((formula) => {
  const [, open, tex] = formula.textContent.trim().match(/^(\\\[|\\\()([^]*)\\[\])]$/)
  katex.render(tex, formula, { displayMode: open === "\\[" })
})
