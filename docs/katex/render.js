// Formulas are MathML already; here they get the letters of KaTeX, which lies beside this file.
document.querySelectorAll(".formula").forEach((formula) =>
  katex.render(formula.dataset.tex, formula, { displayMode: true }),
)
