// The texts of the element, in the languages that it has.

/** All texts of the element. Set `labels` to replace some of them. */
export interface ChatLabels {
  messages: string;
  write: string;
  send: string;
  stop: string;
  earlier: string;
  connecting: string;
  reconnecting: string;
  retry: string;
  working: string;
  stopped: string;
  failed: string;
  sending: string;
  waiting: string;
  sendAgain: string;
  remove: string;
  asks: string;
  approve: string;
  deny: string;
  expired: string;
  file: string;
  refused: string;
}

type Texts = readonly [messages: string, write: string, send: string, stop: string, earlier: string, connecting: string, reconnecting: string, retry: string, working: string, stopped: string, failed: string, sending: string, waiting: string, sendAgain: string, remove: string, asks: string, approve: string, deny: string, expired: string, file: string, refused: string]; // prettier-ignore

const ENGLISH: Texts = ["Messages", "Write a message", "Send", "Stop", "Show earlier messages", "Connecting…", "Reconnecting…", "Try again", "Working…", "Stopped", "The answer failed.", "Sending…", "Waiting to be sent", "Send again", "Remove", "Allow this?", "Approve", "Deny", "Expired without an answer.", "File", "This chat can’t be opened."];

const LANGUAGES: Record<string, Texts> = {
  en: ENGLISH,
  de: ["Nachrichten", "Nachricht schreiben", "Senden", "Anhalten", "Frühere Nachrichten anzeigen", "Wird verbunden…", "Verbindung wird wiederhergestellt…", "Erneut versuchen", "In Arbeit…", "Angehalten", "Die Antwort ist fehlgeschlagen.", "Wird gesendet…", "Wartet auf den Versand", "Erneut senden", "Entfernen", "Erlauben?", "Erlauben", "Ablehnen", "Ohne Antwort abgelaufen.", "Datei", "Dieser Chat kann nicht geöffnet werden."],
  es: ["Mensajes", "Escribe un mensaje", "Enviar", "Detener", "Mostrar mensajes anteriores", "Conectando…", "Reconectando…", "Reintentar", "Trabajando…", "Detenido", "La respuesta ha fallado.", "Enviando…", "Pendiente de envío", "Enviar de nuevo", "Quitar", "¿Permitir?", "Permitir", "Denegar", "Caducó sin respuesta.", "Archivo", "No se puede abrir este chat."],
  fr: ["Messages", "Écrivez un message", "Envoyer", "Arrêter", "Afficher les messages précédents", "Connexion…", "Reconnexion…", "Réessayer", "En cours…", "Arrêté", "La réponse a échoué.", "Envoi…", "En attente d’envoi", "Renvoyer", "Retirer", "Autoriser ?", "Autoriser", "Refuser", "Expiré sans réponse.", "Fichier", "Impossible d’ouvrir cette discussion."],
  zh: ["消息", "输入消息", "发送", "停止", "显示更早的消息", "正在连接…", "正在重新连接…", "重试", "处理中…", "已停止", "回答失败。", "正在发送…", "等待发送", "重新发送", "移除", "允许此操作？", "允许", "拒绝", "已过期，无人答复。", "文件", "无法打开此聊天。"],
  ja: ["メッセージ", "メッセージを入力", "送信", "停止", "以前のメッセージを表示", "接続中…", "再接続中…", "再試行", "処理中…", "停止しました", "回答に失敗しました。", "送信中…", "送信待ち", "再送信", "削除", "許可しますか？", "許可", "拒否", "回答のないまま期限が切れました。", "ファイル", "このチャットを開けません。"],
  ar: ["الرسائل", "اكتب رسالة", "إرسال", "إيقاف", "عرض الرسائل الأقدم", "جارٍ الاتصال…", "جارٍ إعادة الاتصال…", "إعادة المحاولة", "جارٍ العمل…", "متوقف", "تعذّرت الإجابة.", "جارٍ الإرسال…", "بانتظار الإرسال", "إعادة الإرسال", "إزالة", "هل تسمح بذلك؟", "سماح", "رفض", "انتهت الصلاحية من دون رد.", "ملف", "تعذّر فتح هذه المحادثة."],
};

/** The texts in this language (BCP 47), in English if the element does not have it. */
export function labelsOf(language: string): ChatLabels {
  const texts = LANGUAGES[language.split("-")[0]?.toLowerCase() ?? ""] ?? ENGLISH;
  const [messages, write, send, stop, earlier, connecting, reconnecting, retry, working, stopped, failed, sending, waiting, sendAgain, remove, asks, approve, deny, expired, file, refused] = texts; // prettier-ignore
  return { messages, write, send, stop, earlier, connecting, reconnecting, retry, working, stopped, failed, sending, waiting, sendAgain, remove, asks, approve, deny, expired, file, refused }; // prettier-ignore
}

/** Whether this language is written from right to left. */
export function isRightToLeft(language: string): boolean {
  return /^(ar|fa|he|ur)\b/i.test(language);
}
